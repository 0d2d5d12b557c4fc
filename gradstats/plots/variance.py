"""The variance-against-baseline figure, in forest form."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gradstats.plots.appearance import estimator_appearance

# Inches a row at 8-point text.
ROW_HEIGHT = 0.2
TWO_LINE_ROW_HEIGHT = 0.29
WRAP_BEYOND = 20
# Pale colours of the palette need an outline on white.
EDGE = {"markeredgecolor": "0.25", "markeredgewidth": 0.4}
AXIS_LABELS = {
    "ratio": "variance relative to {reference}",
    "matched_ratio": "variance relative to {reference},\nat matched signal",
    "trace_cov": "tr Cov of a group's gradient",
    "noise_to_signal": "noise to signal (groups)",
    "signal_sq": "squared norm of the expected gradient",
    "cosine": "cosine to the unbiased gradient",
    "bias_share": "share of bias in the mean squared error",
    "kept_share": "share of groups with a gradient",
}
LOGARITHMIC = ("ratio", "matched_ratio", "trace_cov", "noise_to_signal")


def plot_variance(
    table: Any,
    *,
    ax: Axes | None = None,
    value: str = "ratio",
    reference: str | None = None,
) -> Axes:
    """Draws one row per estimator, in the table's order, with its interval.

    A row whose value could not be resolved is drawn as the side of its interval that is known (an arrow), or
    says so in words; it is never left out.

    Args:
        table: a `gradstats.stats.VarianceComparison` or its frame.
        ax: where to draw; None makes a figure as wide as rcParams say and as high as the rows need.
        value: the column to draw, with its ``_low`` and ``_high``: on log axes ``"ratio"``,
            ``"matched_ratio"``, ``"trace_cov"`` and ``"noise_to_signal"``; on plain ones ``"signal_sq"``,
            ``"cosine"``, ``"bias_share"`` and ``"kept_share"``.
        reference: name of the reference estimator for the axis label; None takes it from a
            ``VarianceComparison`` or the frame's ``.attrs["reference"]``.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown ``value``, or a frame without its columns.
    """
    frame = table if isinstance(table, pd.DataFrame) else table.to_frame()
    if reference is None:
        reference = frame.attrs.get("reference", "the reference")
    if value not in AXIS_LABELS:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(AXIS_LABELS)}")
    missing = {"estimator", value, f"{value}_low", f"{value}_high"} - set(frame.columns)
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(sorted(missing))}: draw what compare() gives")
    n_rows = len(frame)
    labels = _row_labels(frame)
    if ax is None:
        row_height = TWO_LINE_ROW_HEIGHT if any("\n" in label for label in labels) else ROW_HEIGHT
        width = plt.rcParams["figure.figsize"][0]
        scale = plt.rcParams["font.size"] / 8.0
        _, ax = plt.subplots(figsize=(width, (row_height * max(n_rows, 1) + 0.5) * scale))

    logarithmic = value in LOGARITHMIC
    centre, low, high = (frame[name].to_numpy(dtype=float) for name in (value, f"{value}_low", f"{value}_high"))
    if logarithmic:
        ax.set_xscale("log")
    if value in ("ratio", "matched_ratio"):
        ax.axvline(1.0, color="0.5", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    elif value == "signal_sq":
        ax.axvline(0.0, color="0.5", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)

    left, right = _limits(np.concatenate([centre, low, high]), logarithmic, value)
    ax.set_xlim(left, right)
    for row in range(n_rows):
        _draw_row(ax, row, frame["estimator"].iloc[row], centre[row], low[row], high[row])
    ax.set_yticks(range(n_rows), labels=labels, linespacing=1.05)
    ax.set_ylim(n_rows - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", which="major", zorder=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(AXIS_LABELS[value].format(reference=reference))
    if logarithmic:
        _plain_log_ticks(ax, left, right)
    return ax


def _row_labels(frame: pd.DataFrame) -> list[str]:
    labels = [str(label) for label in frame["estimator"]]
    if "group_size" in frame and len(set(frame["group_size"].dropna())) > 1:
        labels = [f"{label}, N={size:g}" for label, size in zip(labels, frame["group_size"], strict=True)]
    return [label.replace("(", "\n(", 1) if len(label) > WRAP_BEYOND and "(" in label else label for label in labels]


def _limits(values: np.ndarray, logarithmic: bool, value: str) -> tuple[float, float]:
    finite = values[np.isfinite(values) & (values > 0 if logarithmic else True)]
    if value in ("ratio", "matched_ratio"):
        finite = np.append(finite, 1.0)
    if len(finite) == 0:
        return (0.1, 10.0) if logarithmic else (0.0, 1.0)
    ends = np.log(finite) if logarithmic else finite
    smallest, largest = ends.min(), ends.max()
    margin = 0.06 * (largest - smallest) or 0.1 * max(abs(largest), 1.0)
    left, right = smallest - margin, largest + margin
    return (float(np.exp(left)), float(np.exp(right))) if logarithmic else (float(left), float(right))


def _draw_row(ax: Axes, row: int, label: str, centre: float, low: float, high: float) -> None:
    color, marker = estimator_appearance(label)
    left, right = ax.get_xlim()
    if np.isnan(centre) and not np.isfinite(low) and not np.isfinite(high):
        ax.annotate(
            "not resolved",
            (0.5, row),
            xycoords=("axes fraction", "data"),
            ha="center",
            va="center",
            color="0.45",
            style="italic",
            fontsize="small",
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.0},
        )
        return
    start, stop = (
        max(low, left) if np.isfinite(low) else left,
        min(high, right) if np.isfinite(high) else right,
    )
    ax.plot([start, stop], [row, row], color=color, linewidth=1.4, solid_capstyle="butt", zorder=2)
    if not np.isfinite(low):
        ax.plot([left], [row], marker="<", color=color, clip_on=False, zorder=3)
    if not np.isfinite(high):
        ax.plot([right], [row], marker=">", color=color, clip_on=False, zorder=3)
    if np.isfinite(centre):
        ax.plot([centre], [row], marker=marker, color=color, linestyle="none", zorder=4, **EDGE)
    else:
        ax.plot([start], [row], marker="|", color=color, zorder=3)


def _plain_log_ticks(ax: Axes, left: float, right: float) -> None:
    """Plain numbers, with ticks at 1, 2, 5 (or finer) where the axis spans little more than a decade."""
    decades = np.log10(right / left)
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    axis = ax.xaxis
    if decades < 0.7:
        ticks = _linear_ticks(left, right)
        axis.set_major_locator(LogLocator(subs=(1.0,)))
        ax.set_xticks(ticks)
        axis.set_minor_locator(LogLocator(subs=()))
    else:
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_formatter(NullFormatter())
    if decades <= 6 and right < 1e5 and left > 1e-4:
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _linear_ticks(left: float, right: float) -> np.ndarray:
    steps = np.array([1.0, 2.0, 2.5, 5.0, 10.0])
    raw = (right - left) / 5.0
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * steps[np.searchsorted(steps, raw / power)]
    return np.round(np.arange(np.ceil(left / step), np.floor(right / step) + 1) * step, 12)
