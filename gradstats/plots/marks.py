"""The checks that every plot makes of its frame, and the text drawn for an empty one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.typing import ColorType

from gradstats.plots.names import in_mathematics, widening, wrapped
from gradstats.plots.style import REMARK, ink, muted, stroke
from gradstats.stats.variance.quantities import Quantity

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
    """Return the entries of a legend for the signs among some estimates, each with its ends."""
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


# Inches at 7-point text: the width of a character and of a handle, and the height of a row.
_CHARACTER, _HANDLE, ROW = 0.058, 0.4, 0.145
# Inches above and below a legend.
SPACE = 0.1


def legend_text(label: str, width: float, font_size: float) -> str:
    """Break a label into lines that fit a width in inches."""
    longest = int((width * 7.0 / font_size - _HANDLE) / (_CHARACTER * widening()))
    if len(label) <= longest:
        return label
    name, opened, parameters = label.partition("(")
    lines = [line for part in (name, opened + parameters) for line in wrapped(part, longest)]
    return "\n".join(lines)


def legend_columns(labels: list[str], width: float, font_size: float) -> int:
    """Return how many columns of entries fit a width in inches."""
    scale = font_size / 7.0
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), int(width / (scale * (longest * _CHARACTER * widening() + _HANDLE)))))


def legend_height(labels: list[str], width: float, font_size: float) -> float:
    """Return inches that a legend below the axes takes."""
    rows = -(-len(labels) // legend_columns(labels, width, font_size))
    broken = sum(legend_text(label, width, font_size).count("\n") for label in labels)
    return ((rows + broken) * ROW + (SPACE if labels else 0.0)) * font_size / 7.0


def legend_below(ax: Axes, font_size: float, more: Sequence[Line2D] = ()) -> None:
    """Put the legend of what was labelled, and of more lines, under the axes, in as many columns as fit the figure."""
    handles = [*ax.get_legend_handles_labels()[0], *more]
    labels = [*ax.get_legend_handles_labels()[1], *(str(line.get_label()) for line in more)]
    if not labels:
        return
    figure = ax.get_figure()
    assert figure is not None
    width = figure.bbox.width / figure.dpi
    figure.legend(
        handles,
        [in_mathematics(legend_text(label, width, font_size)) for label in labels],
        loc="outside lower center",
        ncols=legend_columns(labels, width, font_size),
        fontsize=font_size,
        columnspacing=1.0,
        borderaxespad=0.2,
    )


@runtime_checkable
class WithFrame(Protocol):
    """A result that has its numbers as a frame."""

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers, one row per mark drawn."""
        ...


def as_frame(table: WithFrame | pd.DataFrame) -> pd.DataFrame:
    """Return the frame of a result, or the frame itself."""
    return table if isinstance(table, pd.DataFrame) else table.to_frame()


def require_columns(frame: pd.DataFrame, columns: Sequence[str], remedy: str) -> None:
    """Refuse a frame without its columns."""
    missing = sorted(set(columns) - set(frame.columns))
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: {remedy}")


def quantity_to_draw(value: str, among: Sequence[Quantity]) -> Quantity:
    """Return the entry of a quantity in the table of quantities."""
    for quantity in among:
        if quantity.name == value:
            return quantity
    names = ", ".join(quantity.name for quantity in among)
    raise ValueError(f"value={value!r} cannot be drawn: choose from {names}")


def draw_nothing(ax: Axes, why: str) -> None:
    """Write in the middle of empty axes why they are empty."""
    ax.annotate(
        why,
        (0.5, 0.5),
        xycoords="axes fraction",
        ha="center",
        va="center",
        color=muted(REMARK),
        style="italic",
    )
