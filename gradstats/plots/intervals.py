"""Intervals as vertical lines, and the signs of what an estimate lacks: an interval, an end of it, or a value."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.typing import ColorType

from gradstats.plots.theme import ink, stroke

#: Entries of the legend.
NO_INTERVAL = "without interval"
INTERVAL_ALONE = "interval alone, no estimate"
OUTSIDE = "estimate beyond the values that are possible"
# The sign of an estimate without interval, which no estimator has as its marker.
CROSS = "x"
CROSS_SIZE = 1.4
DASHES = (0, (3, 1.5))
_ARROW_POINTS = 8.0


def without_interval(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which values are known without any interval; an end that is infinite belongs to one."""
    return np.isfinite(centre) & np.isnan(low) & np.isnan(high)


def interval_alone(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which rows have an end of an interval, or both, and no value."""
    return np.isnan(centre) & (np.isfinite(low) | np.isfinite(high))


def outside(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which values lie outside their interval by more than rounding: unbiased ones, of what has a range."""
    slack = 1e-9 * (1.0 + np.abs(centre))
    return np.isfinite(centre) & ((centre < low - slack) | (centre > high + slack))


def interval_keys(*quantities: Float[np.ndarray, "n 3"], forest: bool = False) -> list[Line2D]:
    """Return the entries of a legend for the signs among some estimates, each with its ends.

    Args:
        quantities: value, low, high.
        forest: whether rows without a value, or with one outside its interval, have signs of their own.
    """
    color = ink()
    signs = [(without_interval, Line2D([], [], color=color, linestyle="none", marker=CROSS, label=NO_INTERVAL))]
    if forest:
        signs += [
            (interval_alone, Line2D([], [], color=color, linestyle=DASHES, marker="|", label=INTERVAL_ALONE)),
            (outside, Line2D([], [], color=color, linestyle=":", linewidth=stroke(1.0), label=OUTSIDE)),
        ]
    return [key for found, key in signs if any(found(*rows.T).any() for rows in quantities)]


def mark_without_interval(
    ax: Axes,
    at: Float[np.ndarray, " n"],
    centre: Float[np.ndarray, " n"],
    low: Float[np.ndarray, " n"],
    high: Float[np.ndarray, " n"],
) -> None:
    """Lay a cross over each value that is known without any interval."""
    bare = without_interval(centre, low, high)
    if bare.any():
        ax.plot(at[bare], centre[bare], marker=CROSS, color=ink(), linestyle="none", markersize=stroke(6.0), zorder=5)


def draw_intervals(
    ax: Axes,
    at: Float[np.ndarray, " n"],
    centre: Float[np.ndarray, " n"],
    low: Float[np.ndarray, " n"],
    high: Float[np.ndarray, " n"],
    color: ColorType,
) -> None:
    """Draw intervals as vertical lines; an arrow stands for an end that is unknown, a cross for no interval at all."""
    start, stop = np.where(np.isfinite(low), low, centre), np.where(np.isfinite(high), high, centre)
    known = np.isfinite(start) & np.isfinite(stop)
    ax.vlines(at[known], start[known], stop[known], color=color, linewidth=stroke(1.0), zorder=2)
    bare = without_interval(centre, low, high)
    for unknown, towards in ((~np.isfinite(high), 1.0), (~np.isfinite(low), -1.0)):
        for place in np.flatnonzero(np.isfinite(centre) & unknown & ~bare):
            ax.annotate(
                "",
                (at[place], centre[place]),
                (0.0, towards * stroke(_ARROW_POINTS)),
                textcoords="offset points",
                arrowprops={
                    "arrowstyle": "<-",
                    "color": color,
                    "linewidth": stroke(1.0),
                    "shrinkA": 0.0,
                    "shrinkB": 0.0,
                },
                zorder=2,
            )
    mark_without_interval(ax, at, centre, low, high)
