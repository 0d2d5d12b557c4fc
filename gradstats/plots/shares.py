"""The share of a gradient by bins of success rate or of length, one line per estimator."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gradstats.plots.appearance import estimator_appearance, variants
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import draw_intervals, interval_keys
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.names import names_in
from gradstats.plots.theme import edge, muted, stroke
from gradstats.stats.variance.gradient_shares import SHARES
from gradstats.stats.variance.quantities import in_metric

_AXIS_LABELS = {"success": "success rate of the prompt", "length": "completion length (tokens)"}


def plot_shares(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = "share_of_gradient") -> Axes:
    """Draw what each bin makes up of the expected gradient or of the variance, which have no unit.

    Args:
        table: :func:`gradstats.variance_by_success`, or frames of :func:`gradstats.variance_by_length` stacked; columns
            ``estimator``, the ends of each bin (``success_low`` and ``success_high``, or ``length_…``), and ``value``
            with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: ``"share_of_gradient"`` or ``"share_of_variance"``. An estimator whose expected gradient is not resolved
            has no share of it, which the legend says.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, or a frame without its columns.
    """
    frame = as_frame(table)
    if value not in SHARES:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(SHARES)}")
    quantity = "success" if "success_low" in frame else "length"
    edges = [f"{quantity}_low", f"{quantity}_high"]
    ends = [value, f"{value}_low", f"{value}_high"]
    require_columns(frame, ["estimator", *edges, *ends], "draw what variance_by_success() gives")
    lines = [(str(name), rows[ends].to_numpy(dtype=float)) for name, rows in frame.groupby("estimator", sort=False)]
    names = names_in(frame)
    labels = [names[name] + ("" if np.isfinite(numbers[:, 0]).any() else " (not resolved)") for name, numbers in lines]
    keys = interval_keys(frame[ends].to_numpy(dtype=float))
    entries = [*labels, *(str(key.get_label()) for key in keys)]
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.15 + legend_height(entries, width, font_size)))
    bins = frame[edges].drop_duplicates().to_numpy(dtype=float)
    kinds = variants([name for name, _ in lines])
    for place, ((name, numbers), label, kind) in enumerate(zip(lines, labels, kinds, strict=True)):
        color, marker = estimator_appearance(name)
        at = np.arange(len(numbers)) + min(0.12, 0.6 / len(lines)) * (place - (len(lines) - 1) / 2.0)
        drawn = {"color": color, "marker": marker, "markerfacecoloralt": ax.get_facecolor(), **kind._asdict()}
        ax.plot(at, numbers[:, 0], linewidth=stroke(1.0), label=label, zorder=3, **drawn, **edge())
        middle, low, high = numbers.T
        draw_intervals(ax, at, middle, low, high, color)
    if not np.isfinite(frame[value].to_numpy(dtype=float)).any():
        draw_nothing(ax, "no share is resolved" if len(frame) else "no bins")
        ax.set_yticks([])
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.set_xticks(range(len(bins)), labels=[bin_label(low, high, "–\n") for low, high in bins])
    ax.set_xlim(-0.5, max(len(bins), 1) - 0.5)
    ax.set_xlabel(_AXIS_LABELS[quantity])
    ax.set_ylabel(in_metric(SHARES[value], frame.attrs))
    legend_below(ax, font_size, keys)
    return ax


def bin_label(low: float, high: float, dash: str = "–") -> str:
    """Return the ends of a bin, or the only value in it."""
    return f"{low:.3g}" if low == high else f"{low:.3g}{dash}{high:.3g}"
