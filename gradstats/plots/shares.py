"""Shares of the gradient by bins of success rates or lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    draw_series,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    require_columns,
    with_ends,
)
from gradstats.plots.names import estimator_appearance, names_in, variants
from gradstats.plots.style import muted, stroke
from gradstats.stats.variance.quantities import in_metric
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Columns of what bins make up of a gradient, and their headings.
SHARES = {"share_of_gradient": "share of gradient", "share_of_variance": "share of variance"}
_AXIS_LABELS = {"success": "success rate of the prompt", "length": "completion length (tokens)"}


def plot_shares(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = "share_of_gradient") -> Axes:
    """Draw what each bin makes up of the expected gradient or of the variance, which have no unit.

    Args:
        table: :func:`gradstats.variance_by_success`, :func:`gradstats.variance_by_length` or their frames; columns
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
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    if value not in SHARES:
        raise ValueError(f"value={value!r} cannot be drawn: choose from {', '.join(SHARES)}")
    quantity = "success" if "success_low" in frame else "length"
    edges = [f"{quantity}_low", f"{quantity}_high"]
    require_columns(frame, ["estimator", *edges, *with_ends(value)], "draw what variance_by_success() gives")
    lines = [(str(name), estimates_of(rows, value)) for name, rows in frame.groupby("estimator", sort=False)]
    names = names_in(frame)
    labels = [names[name] + ("" if np.isfinite(numbers[:, 0]).any() else " (not resolved)") for name, numbers in lines]
    keys = interval_keys(frame, [value])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.15 + legend_height(labels, keys)), layout="constrained")
    bins = frame[edges].drop_duplicates().to_numpy(dtype=float)
    kinds = variants([name for name, _ in lines])
    for place, ((name, numbers), label, kind) in enumerate(zip(lines, labels, kinds, strict=True)):
        at = np.arange(len(numbers)) + min(0.12, 0.6 / len(lines)) * (place - (len(lines) - 1) / 2.0)
        draw_series(ax, at, numbers, estimator_appearance(name), kind, label)
    if not np.isfinite(frame[value].to_numpy(dtype=float)).any():
        draw_nothing(ax, "no share is resolved" if len(frame) else "no bins")
        ax.set_yticks([])
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.set_xticks(range(len(bins)), labels=[bin_label(low, high, "–\n") for low, high in bins])
    ax.set_xlim(-0.5, max(len(bins), 1) - 0.5)
    ax.set_xlabel(_AXIS_LABELS[quantity])
    ax.set_ylabel(in_metric(SHARES[value], frame.attrs))
    legend_below(ax, keys)
    return ax


def lines_of_units(bins: pd.DataFrame, fewest_resolved: int) -> pd.DataFrame | None:
    """Return the bins of the first estimator of each unit, since aggregation and scale decide shares.

    None where the frame has no shares, as of an earlier version, or fewer estimators have resolved ones. That a bin in
    which no completion has a weight makes up 0 is known without any data.
    """
    if "share_of_gradient" not in bins:
        return None
    of_unit = bins.drop_duplicates("unit")["estimator"] if "unit" in bins else bins["estimator"]
    bins = bins.loc[bins["estimator"].isin(list(of_unit))]
    shares = bins["share_of_gradient"].to_numpy(dtype=float)
    resolved = bins.loc[np.isfinite(shares) & (shares != 0.0), "estimator"]
    return bins if len(set(resolved)) >= fewest_resolved else None


def bin_label(low: float, high: float, dash: str = "–") -> str:
    """Return the ends of a bin, or the only value in it."""
    return f"{low:.3g}" if low == high else f"{low:.3g}{dash}{high:.3g}"
