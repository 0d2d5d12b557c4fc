"""Rows with their intervals, one below the other: the common part of the forest figures."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.typing import ColorType

from gradstats.plots.intervals import CROSS, CROSS_SIZE, DASHES
from gradstats.plots.names import CHARACTER, figure_inches, in_mathematics, wrapped
from gradstats.plots.theme import REMARK, edge, muted, stroke

# Inches per row at 8-point text.
ROW_HEIGHT = 0.2
TWO_LINE_ROW_HEIGHT = 0.29
AXIS_HEIGHT = 0.5
# More rows than these are lower, so that those of every published method fit a page.
MANY_ROWS, DENSE_ROW_HEIGHT, DENSE_LINE = 20, 0.15, 0.105
# A label longer than this breaks before its parenthesis, and, where it still is, between its parameters.
WRAP_BEYOND = 20
# Characters of a line of a label, at 8-point text, in half a page's width and in more than that.
LONGEST_LINE, LONGEST_LINE_OF_WIDE = 26, 40
_WIDE = 4.0
# Share of the width of a narrow figure that labels may take.
_LABELS = 0.57
# Positions of ticks on a log axis of less than a decade.
FINE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
# A star's points leave it smaller than other markers of the same size.
STAR = 1.6


def forest_height(labels: Sequence[str], rows_each: int = 1) -> float:
    """Return the figure height in inches at which each label, which some rows share, has room."""
    line = TWO_LINE_ROW_HEIGHT - ROW_HEIGHT
    tallest = max([ROW_HEIGHT, *(ROW_HEIGHT + line * label.count("\n") for label in labels)])
    row = max(tallest / rows_each, ROW_HEIGHT if rows_each == 1 else 1.5 * line)
    return (row * rows_each * max(len(labels), 1) + AXIS_HEIGHT) * plt.rcParams["font.size"] / 8.0


def rows_of_own_height(labels: Sequence[str]) -> tuple[Float[np.ndarray, " rows"], float]:
    """Return the centres of rows that are each as high as their label needs, and the figure height in inches.

    Centres are in units of a row with a label of one line, and start at 0.
    """
    row = ROW_HEIGHT if len(labels) <= MANY_ROWS else DENSE_ROW_HEIGHT
    line = TWO_LINE_ROW_HEIGHT - ROW_HEIGHT if len(labels) <= MANY_ROWS else DENSE_LINE
    heights = np.array([1.0 + line * label.count("\n") / row for label in labels])
    centres = np.cumsum(heights) - heights / 2.0
    height = (row * max(heights.sum(), 1.0) + AXIS_HEIGHT) * plt.rcParams["font.size"] / 8.0
    return centres - (centres[0] if len(centres) else 0.0), height


def longest_line() -> int:
    """Return how many characters a line of a row's label may have at the width of figures."""
    inches = figure_inches()
    return LONGEST_LINE_OF_WIDE if inches >= _WIDE else min(LONGEST_LINE, int(_LABELS * inches / CHARACTER))


def wrap_label(label: str, longest: int | None = None) -> str:
    """Break a long label into several lines: a name in words at its spaces, another before and in its parameters."""
    longest = longest_line() if longest is None else longest
    if len(label) <= WRAP_BEYOND:
        return label
    if ", " in label.partition("(")[0] or "$" in label:
        return "\n".join(wrapped(label, longest))
    name, opened, parameters = label.partition("(")
    lines = [name, opened + parameters] if opened else [label]
    broken = []
    for line in lines:
        while len(line) > longest:
            at_space = line.rfind(" ", 1, longest)
            marks = (" ",) if at_space > 0 else ("_", "/", "·", "-")
            # A point may stand in a number, such as the size of a model.
            cut = max(line.rfind(mark, 0, longest) for mark in marks) + 1 or line.rfind(".", 0, longest) + 1 or longest
            broken.append(line[:cut].rstrip())
            line = line[cut:]
        broken.append(line)
    return "\n".join(broken)


def set_rows(ax: Axes, labels: Sequence[str], places: Float[np.ndarray, " rows"] | None = None) -> None:
    """Label the rows, the first on top, and hide ticks and spine, which a forest does not need."""
    places = np.arange(len(labels), dtype=float) if places is None else places
    ax.set_yticks(places, labels=list(map(in_mathematics, labels)), linespacing=1.05)
    ax.set_ylim((places[-1] if len(places) else -1.0) + 0.6, -0.6)
    _without_ticks(ax)


def set_shared_rows(ax: Axes, labels: Sequence[str], letters: Sequence[Sequence[str]]) -> None:
    """Label groups of rows: one name for each group, one letter for each of its rows."""
    sizes = [len(group) for group in letters]
    first = np.cumsum([0, *sizes])[:-1]
    centres = first + (np.array(sizes) - 1) / 2.0
    ax.yaxis.remove_overlapping_locs = False  # the letter of a group's only row lies at the height of its name
    ax.set_yticks(range(sum(sizes)), labels=[letter for group in letters for letter in group], minor=True)
    ax.set_yticks(centres, labels=list(map(in_mathematics, labels)), linespacing=1.05)
    ax.set_ylim(sum(sizes) - 0.4, -0.6)
    _without_ticks(ax)
    ax.tick_params(axis="y", which="major", pad=2.0 * plt.rcParams["font.size"])


def _without_ticks(ax: Axes) -> None:
    ax.tick_params(axis="y", which="both", length=0)
    ax.grid(axis="x", which="major", zorder=0)
    ax.spines["left"].set_visible(False)


def forest_limits(values: Float[np.ndarray, " n"], logarithmic: bool, landmark: float | None) -> tuple[float, float]:
    """Return the ends of an axis that shows every finite value and the landmark, with a margin."""
    finite = values[np.isfinite(values) & (values > 0 if logarithmic else True)]
    if landmark is not None:
        finite = np.append(finite, landmark)
    if len(finite) == 0:
        return (0.1, 10.0) if logarithmic else (0.0, 1.0)
    ends = np.log(finite) if logarithmic else finite
    smallest, largest = ends.min(), ends.max()
    span = largest - smallest
    # Values that differ by rounding alone are one value.
    margin = 0.06 * span if span > 1e-9 * max(abs(largest), 1.0) else 0.1 * max(abs(largest), 1.0)
    left, right = smallest - margin, largest + margin
    return (float(np.exp(left)), float(np.exp(right))) if logarithmic else (float(left), float(right))


def draw_landmark(ax: Axes, at: float, *, horizontal: bool = False) -> None:
    """Draw a dashed line at a value to compare with."""
    draw = ax.axhline if horizontal else ax.axvline
    draw(at, color=muted(), linewidth=stroke(0.8), linestyle=(0, (4, 2)), zorder=1)


def draw_row(
    ax: Axes,
    row: float,
    estimate: tuple[float, float, float],
    color: ColorType,
    marker: str,
    *,
    hollow: bool = False,
    fill: str = "full",
    unknown: str = "not resolved",
) -> None:
    """Draw a value with its interval; an end that is unknown becomes an arrow, an unknown row a text.

    A value without any interval is a cross, an interval without a value dashed between its ends, and a value outside
    its interval, as an unbiased one of a bounded quantity may be, is joined to it by dots.
    """
    centre, low, high = estimate
    left, right = ax.get_xlim()
    if np.isnan(centre) and not np.isfinite(low) and not np.isfinite(high):
        ax.annotate(
            unknown,
            (0.5, row),
            xycoords=("axes fraction", "data"),
            ha="center",
            va="center",
            color=muted(REMARK),
            style="italic",
            fontsize="small",
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.0},
        )
        return
    size = plt.rcParams["lines.markersize"]
    if np.isfinite(centre) and np.isnan(low) and np.isnan(high):
        look = {"color": color, "markersize": CROSS_SIZE * size, "linestyle": "none"}
        ax.plot([centre], [row], marker=CROSS, markeredgewidth=stroke(1.2), zorder=4, **look)
        return
    # One unbounded on a side runs off the axis there.
    start = float(np.clip(low, left, right)) if np.isfinite(low) else left
    stop = float(np.clip(high, left, right)) if np.isfinite(high) else right
    if not np.isfinite(low):
        ax.plot([left], [row], marker="<", color=color, clip_on=False, zorder=3)
    if not np.isfinite(high):
        ax.plot([right], [row], marker=">", color=color, clip_on=False, zorder=3)
    ax.plot(
        [start, stop],
        [row, row],
        color=color,
        linewidth=1.17 * plt.rcParams["lines.linewidth"],
        linestyle="-" if np.isfinite(centre) else DASHES,
        solid_capstyle="butt",
        zorder=2,
    )
    if not np.isfinite(centre):
        ends = [end for end, known in ((start, low), (stop, high)) if np.isfinite(known) and start < stop]
        if ends:
            ax.plot(ends, [row] * len(ends), marker="|", linestyle="none", color=color, zorder=3)
        return
    nearest = float(np.clip(centre, start, stop))
    if nearest != centre:
        ax.plot([nearest, centre], [row, row], color=color, linewidth=stroke(1.0), linestyle=":", zorder=2)
    if hollow:
        face = {"markerfacecolor": ax.get_facecolor(), "markeredgecolor": color, "markeredgewidth": stroke(1.0)}
    else:
        face = {"fillstyle": fill, "markerfacecoloralt": ax.get_facecolor(), **edge()}
    drawn = size * (STAR if marker == "*" else 1.0)
    ax.plot([centre], [row], marker=marker, color=color, markersize=drawn, linestyle="none", zorder=4, **face)


def plain_ticks(ax: Axes, logarithmic: bool, most: int = 5, *, vertical: bool = False) -> None:
    """Label ticks with plain numbers, at most about ``most``; on a log axis of about a decade, at 1, 2, 5 or finer."""
    axis = ax.yaxis if vertical else ax.xaxis
    left, right = ax.get_ylim() if vertical else ax.get_xlim()
    if not logarithmic:
        axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=min(2, most)))
        return
    decades = np.log10(right / left)
    subs = (
        (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0) if decades > 1 or most < 5 else FINE
    )
    if decades < 0.7:
        ticks = _linear_ticks(left, right, most)
        axis.set_major_locator(LogLocator(subs=(1.0,)))
        axis.set_ticks(ticks)
        axis.set_minor_locator(LogLocator(subs=()))
    else:
        axis.set_major_locator(LogLocator(subs=subs, numticks=12 if decades <= 6 else most + 1))
    if decades > 6:
        axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    if decades <= 6 and right < 1e5 and left > 1e-4:
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _linear_ticks(left: float, right: float, most: int) -> Float[np.ndarray, " k"]:
    steps = np.array([1.0, 2.0, 2.5, 5.0, 10.0])
    raw = (right - left) / most
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * steps[np.searchsorted(steps, raw / power)]
    return np.round(np.arange(np.ceil(left / step), np.floor(right / step) + 1) * step, 12)
