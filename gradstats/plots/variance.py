"""Forest figures: the variance of estimators, a row each, alone, next to bias and cosine, or of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from gradstats.plots.marks import (
    CROSS,
    CROSS_SIZE,
    DASHES,
    WithFrame,
    as_frame,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    quantity_to_draw,
    require_columns,
    with_ends,
)
from gradstats.plots.names import (
    CHARACTER,
    LABELS,
    PANEL_SHARE,
    estimator_appearance,
    estimator_fill,
    figure_inches,
    in_mathematics,
    longest_title,
    names_in,
    reference_name,
    rows_of_one_unit,
    sentence_height,
    widening,
    wrapped,
    wrapped_to_axis,
    write_sentence,
)
from gradstats.plots.save import sample_size_of, write_sample_size
from gradstats.plots.style import REMARK, edge, muted, stroke
from gradstats.stats.variance.best_set import equal_by_construction
from gradstats.stats.variance.quantities import (
    COMPARED,
    JUDGED,
    Quantity,
    axis_label,
    filled_in,
    in_metric,
    shown_below,
    shown_in,
)
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

# Inches per row at 8-point text.
_ROW_HEIGHT = 0.2
_TWO_LINE_ROW_HEIGHT = 0.29
_AXIS_HEIGHT = 0.5
# More rows than these are lower, so that those of every published method fit a page.
_MANY_ROWS, _DENSE_ROW_HEIGHT, _DENSE_LINE = 20, 0.15, 0.105
# A label longer than this breaks before its parenthesis, and, where it still is, between its parameters.
_WRAP_BEYOND = 20
# Characters of a line of a label, at 8-point text, in half a page's width and in more than that.
_LONGEST_LINE, _LONGEST_LINE_OF_WIDE = 26, 40
_WIDE = 4.0
# Share of the width of a narrow figure that labels may take.
_LABELS = 0.57
# Positions of ticks on a log axis of less than a decade.
_FINE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
# Rows of a figure that is read at a glance.
_MOST_ROWS = 8
# A star's points leave it smaller than other markers of the same size.
_STAR = 1.6
# Of an axis that is stretched near 1: up to this relative distance it is nearly linear, beyond it ever more compressed.
_STRETCHED = 0.05
_STRETCHED_TICKS = (0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


def forest_height(labels: Sequence[str], rows_each: int = 1) -> float:
    """Return the figure height in inches at which each label, which some rows share, has room."""
    line = _TWO_LINE_ROW_HEIGHT - _ROW_HEIGHT
    tallest = max([_ROW_HEIGHT, *(_ROW_HEIGHT + line * label.count("\n") for label in labels)])
    row = max(tallest / rows_each, _ROW_HEIGHT if rows_each == 1 else 1.5 * line)
    return (row * rows_each * max(len(labels), 1) + _AXIS_HEIGHT) * mpl.rcParams["font.size"] / 8.0


def rows_of_own_height(labels: Sequence[str]) -> tuple[Float[np.ndarray, " rows"], float]:
    """Return the centres of rows that are each as high as their label needs, and the figure height in inches.

    Centres are in units of a row with a label of one line, and start at 0.
    """
    row = _ROW_HEIGHT if len(labels) <= _MANY_ROWS else _DENSE_ROW_HEIGHT
    line = _TWO_LINE_ROW_HEIGHT - _ROW_HEIGHT if len(labels) <= _MANY_ROWS else _DENSE_LINE
    heights = np.array([1.0 + line * label.count("\n") / row for label in labels])
    centres = np.cumsum(heights) - heights / 2.0
    height = (row * max(heights.sum(), 1.0) + _AXIS_HEIGHT) * mpl.rcParams["font.size"] / 8.0
    return centres - (centres[0] if len(centres) else 0.0), height


def longest_line() -> int:
    """Return how many characters a line of a row's label may have at the width of figures."""
    inches = figure_inches()
    return _LONGEST_LINE_OF_WIDE if inches >= _WIDE else min(_LONGEST_LINE, int(_LABELS * inches / CHARACTER))


def wrap_label(label: str, longest: int | None = None) -> str:
    """Break a long label into several lines: a name in words at its spaces, another before and in its parameters."""
    longest = longest_line() if longest is None else longest
    if len(label) <= _WRAP_BEYOND:
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


def _set_shared_rows(ax: Axes, labels: Sequence[str], letters: Sequence[Sequence[str]]) -> None:
    """Label groups of rows: one name for each group, one letter for each of its rows."""
    sizes = [len(group) for group in letters]
    first = np.cumsum([0, *sizes])[:-1]
    centres = first + (np.array(sizes) - 1) / 2.0
    ax.yaxis.remove_overlapping_locs = False  # the letter of a group's only row lies at the height of its name
    ax.set_yticks(range(sum(sizes)), labels=[letter for group in letters for letter in group], minor=True)
    ax.set_yticks(centres, labels=list(map(in_mathematics, labels)), linespacing=1.05)
    ax.set_ylim(sum(sizes) - 0.4, -0.6)
    _without_ticks(ax)
    ax.tick_params(axis="y", which="major", pad=2.0 * mpl.rcParams["font.size"])


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

    A value without any interval is a cross, and an interval without a value is dashed between its ends.
    """
    centre, low, high = estimate
    left, right = ax.get_xlim()
    if np.isnan(centre) and not np.isfinite(low) and not np.isfinite(high):
        place = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
        box = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.0}
        ax.annotate(unknown, (0.5, row), color=muted(REMARK), style="italic", fontsize="small", bbox=box, **place)
        return
    size = mpl.rcParams["lines.markersize"]
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
    dashes, width = "-" if np.isfinite(centre) else DASHES, 1.17 * mpl.rcParams["lines.linewidth"]
    bar = {"color": color, "linestyle": dashes, "linewidth": width, "solid_capstyle": "butt"}
    ax.plot([start, stop], [row, row], zorder=2, **bar)
    if not np.isfinite(centre):
        ends = [end for end, known in ((start, low), (stop, high)) if np.isfinite(known) and start < stop]
        if ends:
            ax.plot(ends, [row] * len(ends), marker="|", linestyle="none", color=color, zorder=3)
        return
    if hollow:
        face = {"markerfacecolor": ax.get_facecolor(), "markeredgecolor": color, "markeredgewidth": stroke(1.0)}
    else:
        face = {"fillstyle": fill, "markerfacecoloralt": ax.get_facecolor(), **edge()}
    drawn = size * (_STAR if marker == "*" else 1.0)
    ax.plot([centre], [row], marker=marker, color=color, markersize=drawn, linestyle="none", zorder=4, **face)


def plain_ticks(ax: Axes, logarithmic: bool, most: int = 5, *, vertical: bool = False) -> None:
    """Label ticks with plain numbers, at most about ``most``; on a log axis of about a decade, at 1, 2, 5 or finer."""
    import matplotlib.pyplot as plt

    axis = ax.yaxis if vertical else ax.xaxis
    left, right = ax.get_ylim() if vertical else ax.get_xlim()
    if not logarithmic:
        axis.set_major_locator(plt.MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=min(2, most)))
        return
    decades = np.log10(right / left)
    even = _linear_ticks(left, right, most)
    # Two ticks alone look like those of a linear axis.
    if decades < 0.3 or (decades < 0.7 and len(even) >= min(3, most)):
        axis.set_major_locator(plt.LogLocator(subs=(1.0,)))
        axis.set_ticks(even)
        axis.set_minor_locator(plt.LogLocator(subs=()))
    else:
        coarse = (1.0,) if decades > 3 else (1.0, 3.0)
        fine = (1.0, 2.0, 5.0) if decades > 1 or (most < 5 and decades > 0.7) else _FINE
        subs = coarse if decades > 1.5 else fine
        axis.set_major_locator(plt.LogLocator(subs=subs, numticks=12 if decades <= 6 else most + 1))
    if decades > 6:
        axis.set_minor_locator(plt.NullLocator())
    axis.set_minor_formatter(plt.NullFormatter())
    if decades <= 6 and right < 1e5 and left > 1e-4:
        axis.set_major_formatter(plt.FuncFormatter(lambda x, _: f"{x:g}"))


def _linear_ticks(left: float, right: float, most: int) -> Float[np.ndarray, " k"]:
    steps = np.array([1.0, 2.0, 2.5, 5.0, 10.0])
    raw = (right - left) / most
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * steps[np.searchsorted(steps, raw / power)]
    return np.round(np.arange(np.ceil(left / step), np.floor(right / step) + 1) * step, 12)


# Beside several panels there is room for shorter lines only.
_NARROW_LINE = 22
# A line under the first of several panels.
_NARROW_AXIS = 18
_PANELS = shown_in("panels")
# Below these widths, as if text were of 8 points, panels have smaller names, and one tick.
_SMALL_NAMES, _ONE_TICK = 2.5, 2.9
# Characters of a line for which a tick with its number needs the room.
_TICK = 9
# Inches on either side of a panel, for the numbers at the ends of its axis.
_APART = 0.08
# Inches of a line of a title, or of the name of an axis.
_LINE = 0.13


def plot_variance(
    table: WithFrame | pd.DataFrame,
    *,
    ax: Axes | None = None,
    value: str = JUDGED.name,
    reference: str | None = None,
    sort: bool = False,
    short: bool = False,
    stretched: bool = False,
) -> Axes:
    """Draw one row per estimator with its interval, under the number of prompts and completions.

    Where the frame has simultaneous intervals of the value (columns ``…_simultaneous_low`` and ``_high``), they are
    drawn as a thin bar behind the wide one; those of the relative noise decide which names are bold: of rows that are
    shown to be below the reference. A row whose value could not be resolved is drawn as the side of its interval that
    is known (an arrow), or says so in words; only ``short`` leaves it out. Where the value has a unit, rows in another
    unit than the reference's are left out, and a sentence above the axes names them.

    Args:
        table: a :class:`gradstats.analyses.VarianceComparison` or its frame. A column ``run`` distinguishes the rows of
            several runs, by a letter in order of appearance.
        ax: where to draw; None makes a figure as wide as rcParams say and as high as the rows need.
        value: the column to draw, with its ``_low`` and ``_high``; one of :func:`gradstats.compare`'s quantities. The
            default is the relative noise, which has no unit.
        reference: name of the reference estimator for the axis label; None takes it from a
            ``VarianceComparison`` or the frame's ``.attrs["reference"]``.
        sort: lowest value on top (unresolved rows last) instead of the table's order.
        short: estimators that are equal by construction share a row, at most eight rows are drawn, and a sentence above
            the axes names the rows that are not resolved or not drawn.
        stretched: stretch the axis of a ratio near 1, so that small differences are seen beside large ones.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown ``value``, or a frame without its columns.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards = rng.integers(0, 2, 400)
        >>> batch = gs.estimators.Batch(rewards, np.full(400, 10), np.repeat(np.arange(100), 4))
        >>> scores = rewards[:, None] + rng.normal(size=(400, 8))
        >>> ax = gs.plot_variance(gs.compare(batch, ["rloo", "reinforce"], scores))
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['RLOO', 'REINFORCE']
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    require_columns(frame, ["estimator", *with_ends(value)], "draw what compare() gives")
    frame, sentence = rows_of_one_unit(frame, [quantity])
    if short:
        reference = reference_name(frame, reference)
        chosen = short_rows(frame, value)
        frame, sentence = chosen.drawn, " ".join(filter(None, [sentence, chosen.sentence]))
    if sort:
        frame = _sorted_rows(frame, value)
    keys, own = interval_keys(frame, [value], forest=True), None
    if ax is None:
        height = _rows(frame)[1] + sentence_height(sentence) + legend_height([], keys)
        own, ax = plt.subplots(figsize=(mpl.rcParams["figure.figsize"][0], height), layout="constrained")
    _draw_named(ax, frame, quantity, reference)
    if stretched and quantity.logarithmic and quantity.landmark == 1.0:
        _stretch(ax)
    write_sentence(ax, sentence)
    legend_below(ax, keys)
    if own is not None:
        write_sample_size(own, sample_size_of(frame))
    return ax


def _stretch(ax: Axes) -> None:
    """Make a logarithmic axis of ratios linear near 1 and compress it beyond, with ticks that show so."""
    import matplotlib.pyplot as plt

    left, right = ax.get_xlim()
    ax.set_xscale(
        "function",
        functions=(
            lambda ratio: np.arcsinh(np.log(np.maximum(ratio, 1e-9)) / _STRETCHED),
            lambda place: np.exp(_STRETCHED * np.sinh(place)),
        ),
    )
    ax.set_xlim(left, right)
    ax.set_xticks([tick for tick in _STRETCHED_TICKS if left <= tick <= right])
    ax.xaxis.set_minor_locator(plt.NullLocator())
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_xlabel(f"{ax.get_xlabel()}\n(the axis is stretched near 1)")


def plot_variance_panels(
    table: WithFrame | pd.DataFrame,
    *,
    axes: Sequence[Axes] | None = None,
    values: Sequence[str] = _PANELS,
    reference: str | None = None,
    sort: bool = True,
) -> list[Axes]:
    """Draw several quantities side by side, one row per estimator, so that no single one decides.

    Beside the variance stand the cosine to the unbiased gradient and the share of bias, which show where an estimator
    has a low variance because its gradient is shrunken or points elsewhere. Where one of the values has a unit, rows in
    another unit than the reference's are left out, with a sentence.

    Args:
        table: a :class:`gradstats.analyses.VarianceComparison` or its frame.
        axes: one for each value; None makes a figure.
        values: the columns to draw; see :func:`plot_variance`.
        reference: as in :func:`plot_variance`.
        sort: by the first value, lowest on top.

    Returns:
        The axes, left to right.

    Raises:
        ValueError: as :func:`plot_variance`, or when ``axes`` and ``values`` differ in number.
    """
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    frame = as_frame(table)
    require_columns(frame, ["estimator"], "draw what compare() gives")
    quantities = [quantity_to_draw(value, COMPARED) for value in values]
    frame, sentence = rows_of_one_unit(frame, quantities)
    if sort and values and values[0] in frame:
        frame = _sorted_rows(frame, values[0])
    keys, longest = interval_keys(frame, values, forest=True), int(_NARROW_LINE / widening())
    own = None
    if axes is None:
        height = _rows(frame, longest)[1] + 0.25 + sentence_height(sentence) + legend_height([], keys)
        size, ratios = (mpl.rcParams["figure.figsize"][0], height), [1.6, *[1.0] * (len(values) - 1)]
        layout = ConstrainedLayoutEngine(w_pad=_APART)
        own, grid = plt.subplots(1, len(values), figsize=size, squeeze=False, width_ratios=ratios, layout=layout)
        axes = list(grid[0])
    if len(axes) != len(values):
        raise ValueError(f"axes holds {len(axes)} axes for {len(values)} values: give one for each")
    inches = figure_inches()
    for ax, quantity in zip(axes, quantities, strict=True):
        require_columns(frame, with_ends(quantity.name), "draw what compare() gives")
        _draw_named(ax, frame, quantity, reference, longest)
        name = "\n".join(wrapped(reference_name(frame, reference), int(_NARROW_AXIS / widening())))
        label = in_mathematics(filled_in(quantity.panel_label, frame.attrs, name))
        size = mpl.rcParams["axes.labelsize"] if inches >= _SMALL_NAMES else "x-small"
        ax.set_xlabel(in_metric(label, frame.attrs) if ax is axes[0] else label, fontsize=size)
        # The first panel is the widest.
        plain_ticks(ax, quantity.logarithmic, most=4 if ax is axes[0] else 2 if inches >= _ONE_TICK else 1)
    for ax in axes[1:]:
        ax.tick_params(which="both", labelleft=False)
    if axes:
        write_sentence(axes[-1], sentence)
        legend_below(axes[0], keys)
    if own is not None:
        write_sample_size(own, sample_size_of(frame))
    return list(axes)


def rows_shown_below(frame: pd.DataFrame) -> list[int]:
    """Return the positions of rows whose relative noise is shown to be below 1, corrected for comparing all rows."""
    ends = [f"{JUDGED.name}_simultaneous_{end}" for end in ("low", "high")]
    if not set(ends) <= set(frame):
        return []
    return [at for at, one in enumerate(frame[ends].to_numpy(dtype=float)) if shown_below(*one)]


def plot_variance_of_runs(
    table: pd.DataFrame,
    *,
    axes: Sequence[Axes] | None = None,
    value: str = JUDGED.name,
    reference: str | None = None,
) -> list[Axes]:
    """Draw the rows of several runs side by side, a panel for each run, with the same axis and one name for each row.

    Many estimators fit a page so, where :func:`plot_variance` draws a row for each run below the other. A row that a
    run does not have says "not measured". A name is bold where its relative noise is shown to be below 1 in every run.

    Args:
        table: as for :func:`plot_variance`, with a column ``run``, whose entries head the panels.
        axes: one for each run; None makes a figure.
        value: the column to draw.
        reference: as in :func:`plot_variance`.

    Returns:
        The axes, in the order in which the runs appear.

    Raises:
        ValueError: as :func:`plot_variance`, without a column ``run``, or when ``axes`` and runs differ in number.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    require_columns(
        frame, ["estimator", "run", *with_ends(value)], "draw the tables of several runs, one under the other"
    )
    frame, sentence = rows_of_one_unit(frame, [quantity])
    key = ["estimator", "group_size"] if _sizes_differ(frame) else ["estimator"]
    rows = pd.DataFrame(frame[key]).drop_duplicates()
    runs = list(dict.fromkeys(frame["run"]))
    panels = [rows.merge(frame[frame["run"] == run], "left", key) for run in runs]
    labels = row_labels(rows)
    places, height = rows_of_own_height(labels)
    keys = interval_keys(frame, [value], forest=True)
    titles = [wrap_label(str(run), longest_title(len(runs))) for run in runs]
    name = _axis_name(frame, quantity, reference, PANEL_SHARE / len(runs))
    if axes is None:
        lines = max((title.count("\n") for title in titles), default=0)
        lines += name.count("\n")
        height += 0.25 + _LINE * lines * mpl.rcParams["font.size"] / 8.0
        size = (mpl.rcParams["figure.figsize"][0], height + sentence_height(sentence) + legend_height([], keys))
        axes = list(plt.subplots(1, len(runs), figsize=size, squeeze=False, layout="constrained")[1][0])
    if len(axes) != len(runs):
        raise ValueError(f"axes holds {len(axes)} axes for {len(runs)} runs: give one for each")
    for ax, title, panel in zip(axes, titles, panels, strict=True):
        _draw(ax, panel, quantity, frame, places)
        set_rows(ax, labels, places)
        ax.set_title(title, fontsize="medium")
        plain_ticks(ax, quantity.logarithmic, most=max(1, min(5, longest_title(len(runs)) // _TICK)))
        ax.set_xlabel(name)
    if quantity is JUDGED:
        for row in set.intersection(*(set(rows_shown_below(panel)) for panel in panels)) if panels else ():
            axes[0].get_yticklabels()[row].set_fontweight("bold")
    for ax in axes[1:]:
        ax.tick_params(which="both", labelleft=False)
    write_sentence(axes[-1], sentence)
    legend_below(axes[0], keys)
    return list(axes)


def _sorted_rows(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Sort rows by value, lowest first; of unresolved rows, those with a lower bound come first."""
    order = np.lexsort([frame[f"{value}_low"].fillna(np.inf), frame[value].fillna(np.inf)])
    ordered = frame.iloc[order]
    ordered.attrs = frame.attrs
    return ordered


class ShortRows(NamedTuple):
    """The rows of a figure that is read at a glance, and the names of those left out."""

    drawn: pd.DataFrame
    unresolved: list[str]
    between: list[str]  # those drawn, in the order of their values

    @property
    def sentence(self) -> str:
        """Names the rows that are not resolved, and counts the others."""
        said = [f"Not resolved: {'; '.join(self.unresolved)}."] if self.unresolved else []
        if self.between:
            said.append(f"{len(self.between)} more row{'s' if len(self.between) > 1 else ''} in between.")
        return " ".join(said)


def short_rows(frame: pd.DataFrame, value: str, *, named_by_size: bool = False) -> ShortRows:
    """Choose the rows of a figure that is read at a glance; those left out are named by their size where it differs.

    Estimators that are equal by construction share the row of the reference, or of the first of them, which names them
    where three lines suffice. Of more than eight rows those with the lowest and the highest values stay. Where fewer
    than two rows are resolved, which leaves nothing to compare, all stay. With ``named_by_size`` the names of those
    left out always have their size, as of rows that decide on a figure of several sizes.
    """
    known = np.isfinite(frame[value].to_numpy(dtype=float))
    if known.sum() < 2:
        return ShortRows(frame, [], [])
    names, longest = names_in(frame), longest_line() - len(" =")
    by_value = _sorted_rows(frame.loc[known], value)
    reference = frame.attrs.get("reference")
    ordered = by_value.iloc[np.argsort(by_value["estimator"] != reference, kind="stable")]
    if _sizes_differ(frame):  # the same estimator has a row for each size
        groups = [[at] for at in range(len(ordered))]
    else:
        groups = equal_by_construction(ordered[with_ends(value)].to_numpy(dtype=float).tolist())
    labels = [[str(ordered["estimator"].iloc[at]) for at in group] for group in groups]
    # Broken between names only, where these fit a line.
    whole = {label: name.replace(" ", "\u00a0") if len(name) <= longest else name for label, name in names.items()}
    shared = {}
    for first, *others in (group for group in labels if len(group) > 1):
        full = " = ".join(whole[label] for label in (first, *others))
        shared[first] = full if len(full) <= 3 * longest else f"{names[first]} and {len(others)} equal"
    kept = _sorted_rows(ordered.iloc[[group[0] for group in groups]], value)
    at_ends = [*range(len(kept))]
    if len(kept) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        inner = [at for at in at_ends[half:-half] if kept["estimator"].iloc[at] == reference]
        at_ends = [*at_ends[: half - len(inner)], *inner, *at_ends[-half:]]
    by_size = named_by_size or _sizes_differ(frame)
    drawn = kept.iloc[at_ends].copy()
    if _sizes_differ(frame) and not _sizes_differ(drawn):  # whose names would not say theirs
        shared = dict(zip(map(str, drawn["estimator"]), _names_of_rows(drawn, names, by_size), strict=True))
    drawn.attrs = frame.attrs | {LABELS: names | shared}
    left = kept.iloc[[at for at in range(len(kept)) if at not in at_ends]]
    unresolved = dict.fromkeys(_names_of_rows(frame.loc[~known], names, by_size))
    return ShortRows(drawn, list(unresolved), _names_of_rows(left, names if by_size else names | shared, by_size))


def row_labels(frame: pd.DataFrame, longest: int | None = None) -> list[str]:
    """Name each row by its estimator, with its group size where a run has several."""
    labels = _names_of_rows(frame, names_in(frame), _sizes_differ(frame))
    return [wrap_label(label, longest) for label in labels]


def _names_of_rows(frame: pd.DataFrame, names: Mapping[str, str], by_size: bool) -> list[str]:
    labels = [names[str(label)] for label in frame["estimator"]]
    if not by_size:
        return labels
    return [f"{label}, N={size:g}" for label, size in zip(labels, frame["group_size"], strict=True)]


def _sizes_differ(frame: pd.DataFrame) -> bool:
    """Whether the rows of one run have several group sizes; the size of each run is stated with its name."""
    if "group_size" not in frame:
        return False
    runs = [frame] if "run" not in frame else [rows for _, rows in frame.groupby("run")]
    return any(len(set(rows["group_size"].dropna())) > 1 for rows in runs)


def _draw_named(
    ax: Axes, frame: pd.DataFrame, quantity: Quantity, reference: str | None, longest: int | None = None
) -> None:
    """Draw the rows of a frame with their names, and name the axis."""
    places = _rows(frame, longest)[0]
    _draw(ax, frame, quantity, frame, places)
    labels, letters = row_labels(frame, longest), _letters_of_runs(frame)
    if letters:
        _set_shared_rows(ax, [label for label, _ in groupby(labels)], _grouped(labels, letters))
    else:
        set_rows(ax, labels, places)
    if quantity is JUDGED:
        labels = ax.get_yticklabels(minor=bool(letters))
        for row in rows_shown_below(frame):
            labels[row].set_fontweight("bold")
    if frame.empty:
        draw_nothing(ax, "no estimators")
    ax.set_xlabel(_axis_name(frame, quantity, reference, PANEL_SHARE))


def _rows(frame: pd.DataFrame, longest: int | None = None) -> tuple[np.ndarray, float]:
    """Return where the rows stand, and the height in inches that they take."""
    labels, letters = row_labels(frame, longest), _letters_of_runs(frame)
    if not letters:
        return rows_of_own_height(labels)
    rows_each = max(map(len, _grouped(labels, letters)))
    return np.arange(len(frame), dtype=float), forest_height([label for label, _ in groupby(labels)], rows_each)


def _letters_of_runs(frame: pd.DataFrame) -> list[str]:
    """Return each row's letter, by its run in order of appearance; none for the rows of one run."""
    runs = list(dict.fromkeys(frame["run"])) if "run" in frame else []
    return [chr(ord("a") + runs.index(run)) for run in frame["run"]] if len(runs) > 1 else []


def _grouped(labels: Sequence[str], letters: Sequence[str]) -> list[list[str]]:
    """Return the letters of rows that follow each other under the same name."""
    remaining = iter(letters)
    return [[next(remaining) for _ in group] for _, group in groupby(labels)]


def _draw(ax: Axes, frame: pd.DataFrame, quantity: Quantity, every: pd.DataFrame, places: np.ndarray) -> None:
    """Draw the rows of a frame at some heights, on an axis that has room for every row."""
    estimates, together = estimates_of(frame, quantity.name), _simultaneous(frame, quantity)
    if quantity.logarithmic:
        ax.set_xscale("log")
    if quantity.landmark is not None and len(frame):
        draw_landmark(ax, quantity.landmark)
    ax.set_xlim(*_limits(every, quantity))
    measured = frame["kept_share"].notna().to_numpy() if "kept_share" in frame else np.ones(len(frame), dtype=bool)
    colors = []
    for row, (label, estimate) in enumerate(zip(frame["estimator"], estimates, strict=True)):
        color, marker = estimator_appearance(str(label))
        colors.append(color)
        fill, unknown = estimator_fill(str(label)), "not resolved" if measured[row] else "not measured"
        place = float(places[row])
        draw_row(ax, place, (estimate[0], estimate[1], estimate[2]), color, marker, fill=fill, unknown=unknown)
    known = np.flatnonzero(~np.isnan(together).any(axis=1))
    low, high = np.clip(together[known], *ax.get_xlim()).T
    ax.hlines(places[known], low, high, colors=[colors[row] for row in known], linewidth=stroke(0.6), zorder=1.5)
    plain_ticks(ax, quantity.logarithmic)


def _limits(frame: pd.DataFrame, quantity: Quantity) -> tuple[float, float]:
    """Return the ends of an axis that shows all rows with a value."""
    estimates, together = estimates_of(frame, quantity.name), _simultaneous(frame, quantity)
    # A row of which one end is known runs off the axis; it does not stretch it, unless there is no other.
    resolved = frame[quantity.name].notna().to_numpy()
    framing = resolved if resolved.any() else np.ones(len(frame), dtype=bool)
    shown = np.concatenate([estimates[framing].ravel(), together[framing].ravel()])
    return forest_limits(shown, quantity.logarithmic, quantity.landmark)


def _simultaneous(frame: pd.DataFrame, quantity: Quantity) -> np.ndarray:
    """Return the ends that hold for all rows together, (rows, 2); NaN where the frame has none."""
    ends = [f"{quantity.name}_simultaneous_{end}" for end in ("low", "high")]
    return frame[ends].to_numpy(dtype=float) if set(ends) <= set(frame) else np.full((len(frame), 2), np.nan)


def _axis_name(frame: pd.DataFrame, quantity: Quantity, reference: str | None, share: float) -> str:
    """Return the name of the axis in lines that fit a share of the figure's width."""
    return in_mathematics(wrapped_to_axis(axis_label(quantity, frame.attrs, reference_name(frame, reference)), share))
