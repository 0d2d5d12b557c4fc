"""Variance, cosine and bias along one parameter of an estimator, alone or below each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.estimators.display_names import distinct_names
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    mark_without_interval,
    quantity_to_draw,
    require_columns,
    with_ends,
)
from gradstats.plots.names import LABELS, in_mathematics, reference_name
from gradstats.plots.style import edge, ink, muted, paper, stroke
from gradstats.plots.variance import plain_ticks
from gradstats.stats.variance.minimiser import written_interval
from gradstats.stats.variance.quantities import COMPARED, JUDGED, Quantity, axis_label, filled_in, in_metric

#: Quantities below each other in the figure of a run, and the share of its height that each takes.
CURVE_PANELS = {JUDGED.name: 2.0, "cosine": 1.0, "matched_bias_share": 1.0}
# The raw variance, which stands beside the matched one.
RAW = "ratio"
# Lines are told apart in grey: by dashes, and by markers where they end.
_DASHES = ((0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))
# Shares of the height of axes: where the minimiser stands, and what is kept free for it.
_MINIMISER_AT, _ROOM_BELOW = 0.08, 0.14
# Inches of a panel whose share is 1, and of the axis below.
_PANEL, _AXIS = 0.75, 0.45


def plot_variance_curve(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = JUDGED.name) -> Axes:
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
    require_columns(frame, ["value", *with_ends(value)], "draw what variance_curve() gives")
    own, keys = ax is None, interval_keys(frame, [value])
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + legend_height(list(_labels(frame).values()), keys)))
    _draw(ax, frame, quantity)
    _draw_parameters(ax, frame)
    plain_ticks(ax, ax.get_yscale() == "log", most=4, vertical=True)
    ax.set_xlabel(_parameter(frame))
    if own:
        legend_below(ax, keys)
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
    width = plt.rcParams["figure.figsize"][0]
    height = (_PANEL * sum(CURVE_PANELS.values()) + _AXIS) * plt.rcParams["font.size"] / 8.0
    keys = interval_keys(frame, list(CURVE_PANELS))
    height += legend_height(list(_labels(frame).values()), keys)
    _, grid = plt.subplots(
        len(CURVE_PANELS), 1, figsize=(width, height), sharex=True, height_ratios=list(CURVE_PANELS.values())
    )
    for ax, name in zip(grid, CURVE_PANELS, strict=True):
        plot_variance_curve(frame, ax=ax, value=name)
        label = filled_in(quantity_to_draw(name, COMPARED).panel_label, frame.attrs, reference_name(frame))
        ax.set_ylabel(in_mathematics(in_metric(label, frame.attrs) if ax is grid[0] else label))
        ax.set_xlabel("")
    grid[-1].set_xlabel(_parameter(frame))
    legend_below(grid[0], keys)
    return list(grid)


def _draw(ax: Axes, frame: pd.DataFrame, quantity: Quantity) -> None:
    name = quantity.name
    at = frame["value"].to_numpy(dtype=float)
    centre, low, high = estimates_of(frame, name).T
    if not np.isfinite(centre).any():
        draw_nothing(ax, "not resolved")
    labels = _labels(frame)
    marker = "o" if len(frame) <= 12 else ""
    label = labels["matched"] if name == JUDGED.name else None
    ax.plot(at, centre, color=ink(), marker=marker, label=label, zorder=4)
    ax.fill_between(at, low, high, color=muted(0.29), linewidth=0, zorder=2)
    mark_without_interval(ax, at, centre, low, high)
    together = [f"{name}_simultaneous_{end}" for end in ("low", "high")]
    if set(together) <= set(frame):
        for end in together:
            ax.plot(at, frame[end].to_numpy(dtype=float), color=ink(), linewidth=stroke(0.5), zorder=3)
    if name == JUDGED.name and RAW in frame and not np.allclose(frame[RAW], centre, rtol=1e-9, equal_nan=True):
        ax.plot(at, frame[RAW].to_numpy(dtype=float), color=muted(0.75), linestyle=":", label=labels["raw"], zorder=3)
    logarithmic = quantity.logarithmic and bool((centre > 0).any())
    if logarithmic:
        ax.set_yscale("log")
    if quantity.landmark is not None and len(frame):
        ax.axhline(quantity.landmark, color=muted(), linewidth=stroke(0.6), linestyle="--", zorder=1)
    ax.set_ylabel(in_mathematics(axis_label(quantity, frame.attrs, reference_name(frame))))


def _draw_parameters(ax: Axes, frame: pd.DataFrame) -> None:
    """Mark the minimiser with its interval, and exponents that were fitted."""
    labels = _labels(frame)
    first = labels["matched"] in ax.get_legend_handles_labels()[1]  # of several panels one has the entries
    for dashes, fit in zip(_DASHES, _fits(frame), strict=False):
        text = labels[str(fit["fit"])] if first else None
        ax.axvline(float(fit["value"]), color=muted(0.7), linestyle=dashes, linewidth=stroke(0.9), label=text, zorder=1)
    if "lowest" in labels:
        lowest, low, high = (float(frame.attrs[f"minimiser{end}"]) for end in ("", "_low", "_high"))
        along = ax.get_xaxis_transform()
        _make_room_below(ax)
        ax.plot(
            [low, high], [_MINIMISER_AT, _MINIMISER_AT], color=ink(), linewidth=stroke(2.0), transform=along, zorder=5
        )
        start, stop = _range(frame)
        for end, marker, is_cut in ((low, "<", low <= start), (high, ">", high >= stop)):
            if is_cut:
                ax.plot([end], [_MINIMISER_AT], marker=marker, color=ink(), linestyle="", transform=along, zorder=5)
        ax.plot(
            [lowest], [_MINIMISER_AT], marker="D", linestyle="", color=paper(), transform=along, zorder=6,
            label=labels["lowest"] if first else None, **{**edge(), "markeredgewidth": stroke(0.9)},
        )  # fmt: skip


def _make_room_below(ax: Axes) -> None:
    """Lower the end of the vertical axis, so that the minimiser stands between the axis and the curve."""
    low, high = ax.get_ylim()
    share = _ROOM_BELOW / (1.0 - _ROOM_BELOW)
    ax.set_ylim(low * (low / high) ** share if ax.get_yscale() == "log" else low - share * (high - low), high)


def _labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return the entries of the legend, by what they stand for."""
    curve = str(frame.attrs.get("curve", "the estimator"))
    labels = {
        "matched": distinct_names([curve], frame.attrs.get(LABELS))[curve],
        "raw": "without matching (no interval)",
    }
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
