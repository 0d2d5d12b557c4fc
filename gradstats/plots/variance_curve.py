"""Variance, cosine and bias along one parameter of an estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.estimators.display_names import distinct_names
from gradstats.plots.forest import EDGE, plain_ticks
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, quantity_to_draw, require_columns
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.names import LABELS, in_mathematics, reference_name
from gradstats.stats.variance.minimiser import written_interval
from gradstats.stats.variance.quantities import COMPARED, JUDGED, Quantity, axis_label, filled_in, in_metric

#: Quantities below each other in the figure of a run, and the share of its height that each takes.
CURVE_PANELS = {JUDGED.name: 2.0, "cosine": 1.0, "matched_bias_share": 1.0}
# The raw variance, which stands beside the matched one.
RAW = "ratio"
# Lines are told apart in grey: by dashes, and by markers where they end.
_DASHES = ((0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))
_INK, _SHADE = "0.15", "0.75"
# Inches of a panel whose share is 1, and of the axis below.
_PANEL, _AXIS = 0.75, 0.45


def plot_variance_curve(
    table: WithFrame | pd.DataFrame,
    *,
    ax: Axes | None = None,
    value: str = JUDGED.name,
) -> Axes:
    """Draw one quantity along a parameter, with its pointwise band and, thin, the simultaneous one.

    The raw variance is a dotted line beside that at matched signal. Where the frame has a minimiser, a diamond with its
    interval marks it on the horizontal axis, an arrow an end of the interval that is the first or last value, beyond
    which it may lie. Vertical lines mark the exponents that fits give.

    Args:
        table: a :class:`gradstats.stats.VarianceCurve` or its frame.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: the quantity, one of :func:`gradstats.compare`'s.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, or a frame without its columns.
    """
    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    require_columns(frame, ["value", value, f"{value}_low", f"{value}_high"], "draw what variance_curve() gives")
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    own = ax is None
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        height += legend_height(list(_labels(frame).values()), width, font_size)
        _, ax = plt.subplots(figsize=(width, height))
    _draw(ax, frame, quantity)
    _draw_parameters(ax, frame)
    ax.set_xlabel(_parameter(frame))
    if own:
        legend_below(ax, font_size)
    return ax


def plot_variance_curve_panels(table: WithFrame | pd.DataFrame) -> list[Axes]:
    """Draw variance, cosine and bias below each other along a parameter, on a figure of its own.

    Args:
        table: as for :func:`plot_variance_curve`.

    Returns:
        The axes, from the top.

    Raises:
        ValueError: as :func:`plot_variance_curve`.
    """
    frame = as_frame(table)
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    width = plt.rcParams["figure.figsize"][0]
    height = (_PANEL * sum(CURVE_PANELS.values()) + _AXIS) * plt.rcParams["font.size"] / 8.0
    height += legend_height(list(_labels(frame).values()), width, font_size)
    _, grid = plt.subplots(
        len(CURVE_PANELS), 1, figsize=(width, height), sharex=True, height_ratios=list(CURVE_PANELS.values())
    )
    for ax, name in zip(grid, CURVE_PANELS, strict=True):
        plot_variance_curve(frame, ax=ax, value=name)
        label = filled_in(quantity_to_draw(name, COMPARED).panel_label, frame.attrs, reference_name(frame))
        ax.set_ylabel(in_mathematics(in_metric(label, frame.attrs) if ax is grid[0] else label))
        ax.set_xlabel("")
    grid[-1].set_xlabel(_parameter(frame))
    legend_below(grid[0], font_size)
    return list(grid)


def _draw(ax: Axes, frame: pd.DataFrame, quantity: Quantity) -> None:
    name = quantity.name
    at = frame["value"].to_numpy(dtype=float)
    centre, low, high = (frame[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    if not np.isfinite(centre).any():
        draw_nothing(ax, "not resolved")
    labels = _labels(frame)
    marker = "o" if len(frame) <= 12 else ""
    label = labels["matched"] if name == JUDGED.name else None
    ax.plot(at, centre, color=_INK, marker=marker, label=label, zorder=4)
    ax.fill_between(at, low, high, color=_SHADE, linewidth=0, zorder=2)
    together = [f"{name}_simultaneous_{end}" for end in ("low", "high")]
    if set(together) <= set(frame):
        for end in together:
            ax.plot(at, frame[end].to_numpy(dtype=float), color=_INK, linewidth=0.5, zorder=3)
    if name == JUDGED.name and RAW in frame and not np.allclose(frame[RAW], centre, rtol=1e-9, equal_nan=True):
        ax.plot(at, frame[RAW].to_numpy(dtype=float), color="0.35", linestyle=":", label=labels["raw"], zorder=3)
    logarithmic = quantity.logarithmic and bool((centre > 0).any())
    if logarithmic:
        ax.set_yscale("log")
    if quantity.landmark is not None and len(frame):
        ax.axhline(quantity.landmark, color="0.5", linewidth=0.6, linestyle="--", zorder=1)
    plain_ticks(ax, logarithmic, most=4, vertical=True)
    ax.set_ylabel(in_mathematics(axis_label(quantity, frame.attrs, reference_name(frame))))


def _draw_parameters(ax: Axes, frame: pd.DataFrame) -> None:
    """Mark the minimiser with its interval, and exponents that were fitted."""
    labels = _labels(frame)
    first = labels["matched"] in ax.get_legend_handles_labels()[1]  # of several panels one has the entries
    for dashes, fit in zip(_DASHES, _fits(frame), strict=False):
        text = labels[str(fit["fit"])] if first else None
        ax.axvline(float(fit["value"]), color="0.4", linestyle=dashes, linewidth=0.9, label=text, zorder=1)
    if "lowest" in labels:
        lowest, low, high = (float(frame.attrs[f"minimiser{end}"]) for end in ("", "_low", "_high"))
        along = ax.get_xaxis_transform()
        ax.plot([low, high], [0.03, 0.03], color=_INK, linewidth=2.0, transform=along, zorder=5)
        start, stop = _range(frame)
        for end, marker, is_cut in ((low, "<", low <= start), (high, ">", high >= stop)):
            if is_cut:
                ax.plot([end], [0.03], marker=marker, color=_INK, linestyle="", transform=along, zorder=5)
        ax.plot(
            [lowest], [0.03], marker="D", linestyle="", color="white", transform=along, zorder=6,
            label=labels["lowest"] if first else None, **{**EDGE, "markeredgewidth": 0.9},
        )  # fmt: skip


def _labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return the entries of the legend, by what they stand for."""
    curve = str(frame.attrs.get("curve", "the estimator"))
    labels = {"matched": distinct_names([curve], frame.attrs.get(LABELS))[curve], "raw": "without matching"}
    lowest, low, high = (frame.attrs.get(f"minimiser{end}") for end in ("", "_low", "_high"))
    if lowest is not None and low is not None and high is not None and np.isfinite([lowest, low, high]).all():
        labels["lowest"] = f"lowest: {lowest:.2g} {written_interval(low, high, _range(frame), digits=2)}"
    for fit in _fits(frame):
        labels[str(fit["fit"])] = f"α {fit['fit']}: {float(fit['value']):.2f}"
    return labels


def _range(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the first and the last value of the parameter."""
    if "value" not in frame or not len(frame):  # refused or left empty where it is drawn
        return -np.inf, np.inf
    at = frame["value"].to_numpy(dtype=float)
    return float(at.min()), float(at.max())


def _fits(frame: pd.DataFrame) -> Sequence[Mapping[str, float | str]]:
    return frame.attrs.get("fits", [])


def _parameter(frame: pd.DataFrame) -> str:
    name = str(frame.attrs.get("parameter", "parameter"))
    return {"alpha": r"exponent $\alpha$", "delta": r"shift $\delta$", "tau": r"$\tau$", "lam": r"$\lambda$"}.get(
        name, name.replace("_", " ")
    )
