"""What figures share: checks of the frame, signs of intervals and of their absence, and legends below the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from gradstats.plots.names import Appearance, Variant, in_mathematics, widening, wrapped
from gradstats.plots.style import REMARK, edge, ink, muted, stroke
from gradstats.stats.variance.quantities import Quantity, limits_of
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.typing import ColorType

#: Entries of the legend.
NO_INTERVAL = "without interval"
INTERVAL_ALONE = "interval alone, no estimate"
AT_LEAST, AT_MOST = "at least", "at most"
# The sign of an estimate without interval, which no estimator has as its marker.
CROSS = "x"
CROSS_SIZE = 1.4
DASHES = (0, (3, 1.5))
_ARROW_POINTS = 8.0
# Of more points than these, each is smaller and fainter.
_FEW_POINTS = 100


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


def with_ends(name: str) -> list[str]:
    """Return the columns of an estimate and of the ends of its interval."""
    return [name, f"{name}_low", f"{name}_high"]


def estimates_of(frame: pd.DataFrame, name: str) -> Float[np.ndarray, "rows 3"]:
    """Return an estimate of each row with the ends of its interval.

    Intervals are cut to what is possible of a quantity of the comparison, as they are where they are printed. An
    unbiased estimate that lies outside is NaN here, and so is all of an interval that does, or that leaves nothing out
    without a value.
    """
    least, greatest = limits_of(name)
    estimates = frame[with_ends(name)].to_numpy(dtype=float, copy=True)
    impossible = (estimates[:, 1] > greatest) | (estimates[:, 2] < least)
    estimates[:, 1:] = np.clip(estimates[:, 1:], least, greatest)
    slack = 1e-9 * np.abs(estimates[:, 0])
    beyond = (estimates[:, 0] < least - slack) | (estimates[:, 0] > greatest + slack)
    estimates[beyond, 0] = np.nan
    nothing = np.isnan(estimates[:, 0]) & (estimates[:, 1] <= least) & (estimates[:, 2] >= greatest)
    estimates[impossible | nothing] = np.nan
    return np.where(_outside(*estimates.T)[:, None] & [True, False, False], np.nan, estimates)


def draw_nothing(ax: Axes, why: str) -> None:
    """Write in the middle of empty axes why they are empty."""
    ax.annotate(
        why, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", color=muted(REMARK), style="italic"
    )


def without_interval(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which values are known without any interval; an end that is infinite belongs to one."""
    return np.isfinite(centre) & np.isnan(low) & np.isnan(high)


def _interval_alone(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which rows have an end of an interval, or both, and no value."""
    return np.isnan(centre) & (np.isfinite(low) | np.isfinite(high))


def _known_below(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which rows have the lower end of an interval alone."""
    return np.isnan(centre) & np.isfinite(low) & ~np.isfinite(high)


def _known_above(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which rows have the upper end of an interval alone."""
    return _known_below(centre, high, low)


def _outside(
    centre: Float[np.ndarray, " n"], low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return which values lie outside their interval by more than rounding: unbiased ones, of what has a range."""
    slack = 1e-9 * (1.0 + np.abs(centre))
    return np.isfinite(centre) & ((centre < low - slack) | (centre > high + slack))


def interval_keys(frame: pd.DataFrame, names: Sequence[str], *, forest: bool = False) -> list[Line2D]:
    """Return the entries of a legend for the signs that occur among those quantities that a frame has."""
    import matplotlib.pyplot as plt

    color = ink()
    signs = [(without_interval, plt.Line2D([], [], color=color, linestyle="none", marker=CROSS, label=NO_INTERVAL))]
    if forest:
        alone = plt.Line2D([], [], color=color, linestyle=DASHES, marker="|", label=INTERVAL_ALONE)
        signs.append((_interval_alone, alone))
    else:
        bounds = ((_known_below, "^", AT_LEAST), (_known_above, "v", AT_MOST))
        hollow = {"color": color, "linestyle": "none", "markerfacecolor": "none"}
        signs += [(found, plt.Line2D([], [], marker=marker, label=label, **hollow)) for found, marker, label in bounds]
    drawn = [estimates_of(frame, name) for name in names if set(with_ends(name)) <= set(frame)]
    return [key for found, key in signs if any(found(*rows.T).any() for rows in drawn)]


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
    """Draw intervals as vertical lines, with an arrow at an unknown end; a bound alone is a triangle.

    A cross stands for no interval at all.
    """
    start, stop = np.where(np.isfinite(low), low, centre), np.where(np.isfinite(high), high, centre)
    known = np.isfinite(start) & np.isfinite(stop)
    ax.vlines(at[known], start[known], stop[known], color=color, linewidth=stroke(1.0), zorder=2)
    bare = without_interval(centre, low, high)
    arrow = {"arrowstyle": "<-", "color": color, "linewidth": stroke(1.0), "shrinkA": 0.0, "shrinkB": 0.0}
    for unknown, towards in ((~np.isfinite(high), 1.0), (~np.isfinite(low), -1.0)):
        for place in np.flatnonzero(np.isfinite(centre) & unknown & ~bare):
            tip = (0.0, towards * stroke(_ARROW_POINTS))
            point = (at[place], centre[place])
            ax.annotate("", point, tip, textcoords="offset points", arrowprops=arrow, zorder=2)
    hollow = {"color": color, "linestyle": "none", "markerfacecolor": "none", "zorder": 3}
    for known, bound, marker in ((_known_below, low, "^"), (_known_above, high, "v")):
        if (alone := known(centre, low, high)).any():
            ax.plot(at[alone], bound[alone], marker=marker, **hollow)
    mark_without_interval(ax, at, centre, low, high)


def draw_series(
    ax: Axes,
    at: Float[np.ndarray, " n"],
    estimates: Float[np.ndarray, "n 3"],
    look: Appearance,
    kind: Variant,
    label: str | None,
) -> None:
    """Draw the estimates of one estimator as a line with intervals."""
    face = {"markerfacecoloralt": ax.get_facecolor(), **kind._asdict(), **edge()}
    centre, low, high = estimates.T
    ax.plot(at, centre, linewidth=stroke(1.0), label=label, zorder=3, **look._asdict(), **face)
    draw_intervals(ax, at, centre, low, high, look.color)


def points_look(count: int) -> dict[str, Any]:
    """Return how so many points are scattered: smaller and fainter where they are many."""
    few = count <= _FEW_POINTS
    return {
        "s": (9 if few else 4) * (mpl.rcParams["font.size"] / 8.0) ** 2,
        "alpha": 0.7 if few else max(0.08, 0.7 * (_FEW_POINTS / count) ** 0.5),
        "linewidths": 0,
        "rasterized": count > 2000,
    }


# Inches at 7-point text: the width of a character and of a handle, and the height of a row.
_CHARACTER, _HANDLE, ROW = 0.058, 0.4, 0.145
# Inches above and below a legend.
SPACE = 0.1


def _legend_size() -> float:
    """Return the size of the text below axes, in points."""
    return mpl.rcParams["font.size"] * 7.0 / 8.0


def legend_text(label: str, width: float, font_size: float) -> str:
    """Break a label into lines that fit a width in inches."""
    longest = int((width * 7.0 / font_size - _HANDLE) / (_CHARACTER * widening()))
    if len(label) <= longest:
        return label
    name, opened, parameters = label.partition("(")
    lines = [line for part in (name, opened + parameters) for line in wrapped(part, longest)]
    return "\n".join(lines)


def legend_columns(labels: Sequence[str], width: float, font_size: float) -> int:
    """Return how many columns of entries fit a width in inches."""
    scale = font_size / 7.0
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), int(width / (scale * (longest * _CHARACTER * widening() + _HANDLE)))))


def legend_height(labels: Sequence[str], keys: Sequence[Line2D] = (), *, font_size: float | None = None) -> float:
    """Return inches that a legend of labels and keys takes below the axes of a figure of the current width."""
    font_size, width = _legend_size() if font_size is None else font_size, mpl.rcParams["figure.figsize"][0]
    entries = [*labels, *(str(key.get_label()) for key in keys)]
    rows = -(-len(entries) // legend_columns(entries, width, font_size))
    broken = sum(legend_text(label, width, font_size).count("\n") for label in entries)
    return ((rows + broken) * ROW + (SPACE if entries else 0.0)) * font_size / 7.0


def legend_below(ax: Axes, keys: Sequence[Line2D] = (), *, font_size: float | None = None) -> None:
    """Put the legend of what was labelled, and of more keys, under the axes, in as many columns as fit the figure."""
    font_size = _legend_size() if font_size is None else font_size
    handles, labels = ax.get_legend_handles_labels()
    labels = [*labels, *(str(key.get_label()) for key in keys)]
    if not labels:
        return
    figure = ax.get_figure()
    assert figure is not None
    width = figure.bbox.width / figure.dpi
    figure.legend(
        [*handles, *keys],
        [in_mathematics(legend_text(label, width, font_size)) for label in labels],
        loc="outside lower center",
        ncols=legend_columns(labels, width, font_size),
        fontsize=font_size,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
