"""Bins of a quantity by which gradients are split: of equal counts, or between given edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Real


def equal_count_bins(values: Real[np.ndarray, " n"], n_bins: int) -> Real[np.ndarray, "bins 2"]:
    """Return the smallest and greatest value of bins of about equally many; fewer where values tie.

    Args:
        values: what is binned.
        n_bins: at least 1.
    """
    ordered = np.sort(values)
    starts = np.unique(ordered[(np.arange(n_bins) * len(ordered)) // n_bins])
    ends = [*(ordered[ordered < start].max() for start in starts[1:]), ordered[-1]]
    return np.column_stack([starts, ends])


def inside_bins(values: Real[np.ndarray, " n"], bins: Real[np.ndarray, "bins 2"]) -> list[Bool[np.ndarray, " n"]]:
    """Return which values lie in each bin, both ends inside."""
    return [(values >= low) & (values <= high) for low, high in bins]


def binned(
    values: Real[np.ndarray, " n"], bins: int | Sequence[float]
) -> tuple[Real[np.ndarray, "bins 2"], list[Bool[np.ndarray, " n"]]]:
    """Split values into bins of equal counts, or by edges, each bin without its upper edge except the last.

    Args:
        values: what is binned.
        bins: number of bins, or ascending edges that hold every value.

    Returns:
        The ends of each bin, and which values it holds.

    Raises:
        ValueError: for a number below 1, fewer than two edges, edges that do not ascend, or a value outside them.
    """
    if isinstance(bins, int | np.integer):
        if bins < 1:
            raise ValueError(f"bins={bins} must be at least 1")
        ends = equal_count_bins(values, int(bins))
        return ends, inside_bins(values, ends)
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bins={list(bins)} must be a number of bins, or at least two ascending edges")
    outside = values[(values < edges[0]) | (values > edges[-1])]
    if len(outside):
        raise ValueError(f"bins={list(bins)} leaves {len(outside)} values outside, such as {outside[0]:g}: widen them")
    place = np.minimum(np.searchsorted(edges, values, side="right") - 1, len(edges) - 2)
    return np.column_stack([edges[:-1], edges[1:]]), [place == at for at in range(len(edges) - 1)]
