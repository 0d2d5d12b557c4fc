"""The variance-against-baseline figure, in forest form, alone or next to bias and cosine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gradstats.plots.appearance import estimator_appearance, estimator_fill
from gradstats.plots.forest import (
    draw_landmark,
    draw_row,
    forest_height,
    forest_limits,
    plain_ticks,
    rows_of_own_height,
    set_rows,
    set_shared_rows,
    wrap_label,
)
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, quantity_to_draw, require_columns
from gradstats.plots.intervals import interval_keys
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.names import (
    PANEL_SHARE,
    figure_inches,
    in_mathematics,
    longest_title,
    names_in,
    reference_name,
    widening,
    wrapped,
    wrapped_to_axis,
)
from gradstats.plots.theme import stroke
from gradstats.plots.units import rows_of_one_unit, sentence_height, write_sentence
from gradstats.stats.variance.quantities import COMPARED, JUDGED, Quantity, axis_label, filled_in, in_metric, shown_in
from gradstats.stats.variance.winner import rows_in_best_set

# Beside several panels there is room for shorter lines only.
NARROW_LINE = 22
# A line under the first of several panels.
NARROW_AXIS = 18
PANELS = shown_in("panels")
# Below these widths, as if text were of 8 points, panels have smaller names, and one tick.
SMALL_NAMES, ONE_TICK = 2.5, 2.9
# Characters of a line for which a tick with its number needs the room.
TICK = 9
# Inches of a line of a title, or of the name of an axis.
LINE = 0.13


def plot_variance(
    table: WithFrame | pd.DataFrame,
    *,
    ax: Axes | None = None,
    value: str = JUDGED.name,
    reference: str | None = None,
    sort: bool = False,
) -> Axes:
    """Draw one row per estimator with its interval.

    Where the frame has simultaneous intervals of the value (columns ``…_simultaneous_low`` and ``_high``), they are
    drawn as a thin bar behind the wide one; beside the variance at matched signal the names of the best set
    (``in_best_set``) are bold. A row whose value could not be resolved is drawn as the side of its interval that
    is known (an arrow), or says so in words; it is never left out. Where the value has a unit, rows in another unit
    than the reference's are left out, and a sentence above the axes names them.

    Args:
        table: a :class:`gradstats.stats.VarianceComparison` or its frame. A column ``run`` distinguishes the rows of
            several runs, by a letter in order of appearance.
        ax: where to draw; None makes a figure as wide as rcParams say and as high as the rows need.
        value: the column to draw, with its ``_low`` and ``_high``; one of :func:`gradstats.compare`'s quantities. The
            default is the variance relative to the reference at matched signal, which has no unit.
        reference: name of the reference estimator for the axis label; None takes it from a
            ``VarianceComparison`` or the frame's ``.attrs["reference"]``.
        sort: lowest value on top (unresolved rows last) instead of the table's order.

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
    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    require_columns(frame, ["estimator", *_with_ends(quantity)], "draw what compare() gives")
    frame, sentence = rows_of_one_unit(frame, [quantity])
    if sort:
        frame = sorted_rows(frame, value)
    keys = _keys(frame, [quantity])
    if ax is None:
        height = _rows(frame)[1] + sentence_height(sentence) + _height_of(keys)
        _, ax = plt.subplots(figsize=(plt.rcParams["figure.figsize"][0], height))
    _draw_named(ax, frame, quantity, reference)
    write_sentence(ax, sentence)
    legend_below(ax, _key_size(), keys)
    return ax


def plot_variance_panels(
    table: WithFrame | pd.DataFrame,
    *,
    axes: Sequence[Axes] | None = None,
    values: Sequence[str] = PANELS,
    reference: str | None = None,
    sort: bool = True,
) -> list[Axes]:
    """Draw several quantities side by side, one row per estimator, so that no single one decides.

    Beside the variance stand the cosine to the unbiased gradient and the share of bias, which show where an estimator
    has a low variance because its gradient is shrunken or points elsewhere. Where one of the values has a unit, rows in
    another unit than the reference's are left out, with a sentence.

    Args:
        table: a :class:`gradstats.stats.VarianceComparison` or its frame.
        axes: one for each value; None makes a figure.
        values: the columns to draw; see :func:`plot_variance`.
        reference: as in :func:`plot_variance`.
        sort: by the first value, lowest on top.

    Returns:
        The axes, left to right.

    Raises:
        ValueError: as :func:`plot_variance`, or when ``axes`` and ``values`` differ in number.
    """
    frame = as_frame(table)
    require_columns(frame, ["estimator"], "draw what compare() gives")
    quantities = [quantity_to_draw(value, COMPARED) for value in values]
    frame, sentence = rows_of_one_unit(frame, quantities)
    if sort and values and values[0] in frame:
        frame = sorted_rows(frame, values[0])
    keys = _keys(frame, quantities)
    if axes is None:
        height = _rows(frame, int(NARROW_LINE / widening()))[1] + 0.25 + sentence_height(sentence) + _height_of(keys)
        size = (plt.rcParams["figure.figsize"][0], height)
        _, grid = plt.subplots(1, len(values), figsize=size, squeeze=False, width_ratios=_widths(len(values)))
        axes = list(grid[0])
    if len(axes) != len(values):
        raise ValueError(f"axes holds {len(axes)} axes for {len(values)} values: give one for each")
    inches = figure_inches()
    for ax, quantity in zip(axes, quantities, strict=True):
        require_columns(frame, _with_ends(quantity), "draw what compare() gives")
        _draw_named(ax, frame, quantity, reference, int(NARROW_LINE / widening()))
        name = "\n".join(wrapped(reference_name(frame, reference), int(NARROW_AXIS / widening())))
        label = in_mathematics(filled_in(quantity.panel_label, frame.attrs, name))
        size = plt.rcParams["axes.labelsize"] if inches >= SMALL_NAMES else "x-small"
        ax.set_xlabel(in_metric(label, frame.attrs) if ax is axes[0] else label, fontsize=size)
        # The first panel is the widest.
        plain_ticks(ax, quantity.logarithmic, most=4 if ax is axes[0] else 2 if inches >= ONE_TICK else 1)
    if JUDGED in quantities:
        _mark_best_set(axes[0], frame)
    for ax in axes[1:]:
        ax.tick_params(which="both", labelleft=False)
    if axes:
        write_sentence(axes[-1], sentence)
        legend_below(axes[0], _key_size(), keys)
    return list(axes)


def plot_variance_of_runs(
    table: pd.DataFrame,
    *,
    axes: Sequence[Axes] | None = None,
    value: str = JUDGED.name,
    reference: str | None = None,
) -> list[Axes]:
    """Draw the rows of several runs side by side, a panel for each run, with the same axis and one name for each row.

    Many estimators fit a page so, where :func:`plot_variance` draws a row for each run below the other. A row that a
    run does not have says "not measured". Beside the variance at matched signal a name is bold where it is in the best
    set of every run.

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
    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    columns = ["estimator", "run", value, f"{value}_low", f"{value}_high"]
    require_columns(frame, columns, "draw the tables of several runs, one under the other")
    frame, sentence = rows_of_one_unit(frame, [quantity])
    key = ["estimator", "group_size"] if _sizes_differ(frame) else ["estimator"]
    rows = pd.DataFrame(frame[key]).drop_duplicates()
    runs = list(dict.fromkeys(frame["run"]))
    panels = [rows.merge(frame[frame["run"] == run], "left", key) for run in runs]
    labels = row_labels(rows)
    places, height = rows_of_own_height(labels)
    keys = _keys(frame, [quantity])
    if axes is None:
        texts = [wrap_label(str(run), longest_title(len(runs))) for run in runs]
        lines = max((text.count("\n") for text in texts), default=0)
        lines += _axis_name(frame, quantity, reference, PANEL_SHARE / len(runs)).count("\n")
        height += 0.25 + LINE * lines * plt.rcParams["font.size"] / 8.0
        size = (plt.rcParams["figure.figsize"][0], height + sentence_height(sentence) + _height_of(keys))
        axes = list(plt.subplots(1, len(runs), figsize=size, squeeze=False)[1][0])
    if len(axes) != len(runs):
        raise ValueError(f"axes holds {len(axes)} axes for {len(runs)} runs: give one for each")
    for ax, run, panel in zip(axes, runs, panels, strict=True):
        _draw(ax, panel, quantity, frame, places)
        set_rows(ax, labels, places)
        ax.set_title(wrap_label(str(run), longest_title(len(runs))), fontsize="medium")
        plain_ticks(ax, quantity.logarithmic, most=max(1, min(5, longest_title(len(runs)) // TICK)))
        _name_axis(ax, frame, quantity, reference, PANEL_SHARE / len(runs))
    if quantity is JUDGED:
        best = [set(rows_in_best_set(panel)) for panel in panels if "in_best_set" in panel]
        for row in set.intersection(*best) if best else ():
            axes[0].get_yticklabels()[row].set_fontweight("bold")
    for ax in axes[1:]:
        ax.tick_params(which="both", labelleft=False)
    write_sentence(axes[-1], sentence)
    legend_below(axes[0], _key_size(), keys)
    return list(axes)


def sorted_rows(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Sort rows by value, lowest first; of unresolved rows, those with a lower bound come first."""
    order = np.lexsort([frame[f"{value}_low"].fillna(np.inf), frame[value].fillna(np.inf)])
    ordered = frame.iloc[order]
    ordered.attrs = frame.attrs
    return ordered


def row_labels(frame: pd.DataFrame, longest: int | None = None) -> list[str]:
    """Name each row by its estimator, with its group size where a run has several."""
    names = names_in(frame)
    labels = [names[str(label)] for label in frame["estimator"]]
    if _sizes_differ(frame):
        labels = [f"{label}, N={size:g}" for label, size in zip(labels, frame["group_size"], strict=True)]
    return [wrap_label(label, longest) for label in labels]


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
    _draw(ax, frame, quantity, places=_rows(frame, longest)[0])
    _name_rows(ax, frame, longest)
    if quantity is JUDGED:
        _mark_best_set(ax, frame)
    if frame.empty:
        draw_nothing(ax, "no estimators")
    _name_axis(ax, frame, quantity, reference)


def _name_rows(ax: Axes, frame: pd.DataFrame, longest: int | None = None) -> None:
    labels, letters = row_labels(frame, longest), _letters_of_runs(frame)
    if letters:
        set_shared_rows(ax, [label for label, _ in groupby(labels)], _grouped(labels, letters))
    else:
        set_rows(ax, labels, _rows(frame, longest)[0])


def _rows(frame: pd.DataFrame, longest: int | None = None) -> tuple[np.ndarray, float]:
    """Return where the rows stand, and the height in inches that they take."""
    labels, letters = row_labels(frame, longest), _letters_of_runs(frame)
    if not letters:
        return rows_of_own_height(labels)
    rows_each = max(map(len, _grouped(labels, letters)))
    return np.arange(len(frame), dtype=float), forest_height([label for label, _ in groupby(labels)], rows_each)


def _keys(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[Line2D]:
    """Return the entries of a legend for estimates without interval, and the like."""
    drawn = [_estimates(frame, quantity) for quantity in quantities if set(_with_ends(quantity)) <= set(frame)]
    return interval_keys(*drawn, forest=True)


def _key_size() -> float:
    return plt.rcParams["font.size"] * 7.0 / 8.0


def _height_of(keys: Sequence[Line2D]) -> float:
    labels = [str(key.get_label()) for key in keys]
    return legend_height(labels, plt.rcParams["figure.figsize"][0], _key_size()) if labels else 0.0


def _letters_of_runs(frame: pd.DataFrame) -> list[str]:
    """Return each row's letter, by its run in order of appearance; none for the rows of one run."""
    runs = list(dict.fromkeys(frame["run"])) if "run" in frame else []
    return [chr(ord("a") + runs.index(run)) for run in frame["run"]] if len(runs) > 1 else []


def _grouped(labels: Sequence[str], letters: Sequence[str]) -> list[list[str]]:
    """Return the letters of rows that follow each other under the same name."""
    remaining = iter(letters)
    return [[next(remaining) for _ in group] for _, group in groupby(labels)]


def _draw(
    ax: Axes,
    frame: pd.DataFrame,
    quantity: Quantity,
    beside: pd.DataFrame | None = None,
    places: np.ndarray | None = None,
) -> None:
    """Draw the rows of a frame at some heights, on an axis for those of ``beside`` as well."""
    places = np.arange(len(frame), dtype=float) if places is None else places
    estimates, together = _estimates(frame, quantity), _simultaneous(frame, quantity)
    if quantity.logarithmic:
        ax.set_xscale("log")
    if quantity.landmark is not None and len(frame):
        draw_landmark(ax, quantity.landmark)
    ax.set_xlim(*_limits(frame if beside is None else beside, quantity))
    measured = frame["kept_share"].notna().to_numpy() if "kept_share" in frame else np.ones(len(frame), dtype=bool)
    colors = []
    for row, (label, estimate) in enumerate(zip(frame["estimator"], estimates, strict=True)):
        color, marker = estimator_appearance(str(label))
        colors.append(color)
        fill = estimator_fill(str(label))
        unknown = "not resolved" if measured[row] else "not measured"
        draw_row(
            ax, float(places[row]), (estimate[0], estimate[1], estimate[2]), color, marker, fill=fill, unknown=unknown
        )
    known = np.flatnonzero(~np.isnan(together).any(axis=1))
    low, high = np.clip(together[known], *ax.get_xlim()).T
    ax.hlines(places[known], low, high, colors=[colors[row] for row in known], linewidth=stroke(0.6), zorder=1.5)
    plain_ticks(ax, quantity.logarithmic)


def _estimates(frame: pd.DataFrame, quantity: Quantity) -> np.ndarray:
    return frame[_with_ends(quantity)].to_numpy(dtype=float)


def _with_ends(quantity: Quantity) -> list[str]:
    return [f"{quantity.name}{end}" for end in ("", "_low", "_high")]


def _limits(frame: pd.DataFrame, quantity: Quantity) -> tuple[float, float]:
    """Return the ends of an axis that shows all rows with a value."""
    estimates, together = _estimates(frame, quantity), _simultaneous(frame, quantity)
    # A row of which one end is known runs off the axis; it does not stretch it, unless there is no other.
    resolved = ~np.isnan(estimates[:, 0])
    framing = resolved if resolved.any() else np.ones(len(frame), dtype=bool)
    shown = np.concatenate([estimates[framing].ravel(), together[framing].ravel()])
    return forest_limits(shown, quantity.logarithmic, quantity.landmark)


def _simultaneous(frame: pd.DataFrame, quantity: Quantity) -> np.ndarray:
    """Return the ends that hold for all rows together, (rows, 2); NaN where the frame has none."""
    ends = [f"{quantity.name}_simultaneous_{end}" for end in ("low", "high")]
    return frame[ends].to_numpy(dtype=float) if set(ends) <= set(frame) else np.full((len(frame), 2), np.nan)


def _mark_best_set(ax: Axes, frame: pd.DataFrame) -> None:
    if "in_best_set" in frame:
        labels = ax.get_yticklabels(minor=bool(len(ax.get_yticks(minor=True))))
        for row in rows_in_best_set(frame):
            labels[row].set_fontweight("bold")


def _name_axis(
    ax: Axes, frame: pd.DataFrame, quantity: Quantity, reference: str | None, share: float = PANEL_SHARE
) -> None:
    ax.set_xlabel(in_mathematics(_axis_name(frame, quantity, reference, share)))


def _axis_name(frame: pd.DataFrame, quantity: Quantity, reference: str | None, share: float) -> str:
    return wrapped_to_axis(axis_label(quantity, frame.attrs, reference_name(frame, reference)), share)


def _widths(n: int) -> list[float]:
    return [1.6, *[1.0] * (n - 1)]
