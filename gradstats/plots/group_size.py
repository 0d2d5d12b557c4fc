"""Relative noise against the group size, and the components of the variance within prompts and between them."""

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
    quantity_to_draw,
    require_columns,
    with_ends,
)
from gradstats.plots.names import (
    estimator_appearance,
    names_in,
    reference_name,
    rows_of_one_unit,
    sentence_height,
    variants,
    write_sentence,
)
from gradstats.plots.variance import (
    draw_landmark,
    draw_row,
    forest_limits,
    plain_ticks,
    row_labels,
    rows_of_own_height,
    set_rows,
    short_rows,
)
from gradstats.stats.variance.quantities import (
    COMPONENT_LABEL,
    JUDGED,
    QUANTITIES,
    VARIANCE_COMPONENTS,
    axis_label,
    in_metric,
)
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAWN = tuple(QUANTITIES[name] for name in (JUDGED.name, "trace_cov", "within_prompt", "noise_to_signal"))


def plot_group_size(
    table: WithFrame | pd.DataFrame,
    *,
    ax: Axes | None = None,
    value: str = JUDGED.name,
    per_completion: bool = True,
    group_size_of_run: int | None = None,
) -> Axes:
    """Draw a quantity against group size on log axes, one line per estimator; by default the one that ranks them.

    Which lines are drawn is decided at the largest size: estimators that are equal by construction share one, and of
    more than eight those with the lowest and the highest values stay, as in :func:`gradstats.plots.plot_variance` with
    ``short``. Where the value has a unit, estimators in another unit than the reference's are left out. A sentence
    names both.

    Args:
        table: frames of :func:`gradstats.compare` at several group sizes, or of ``.variance_components()``, stacked;
            columns ``estimator``, ``group_size`` and ``value`` with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: ``"matched_ratio"``, the relative noise to the reference in groups of the same size; ``"trace_cov"``,
            ``"within_prompt"`` or ``"noise_to_signal"``.
        per_completion: multiply what has a unit by the group size, which compares groups at an equal total of
            completions.
        group_size_of_run: completions per prompt that were drawn; a dashed line, and "run" below its number, mark it.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, or missing columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    quantity = quantity_to_draw(value, _DRAWN)
    require_columns(frame, ["estimator", "group_size", *with_ends(value)], "draw what compare() gives")
    frame, sentence = rows_of_one_unit(frame, [quantity])
    largest = frame.loc[frame["group_size"] == frame["group_size"].max()]
    largest.attrs = frame.attrs
    chosen, shown, sentence = _chosen(largest, value, sentence, named_by_size=len(largest) < len(frame))
    labels = list(map(str, dict.fromkeys(chosen["estimator"])))
    known = frame.loc[frame["estimator"].isin(labels)]
    keys = interval_keys(known, [value])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        height += legend_height([shown[label] for label in labels], keys) + sentence_height(sentence)
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    scaled = per_completion and quantity.has_unit
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for place, (label, kind) in enumerate(zip(labels, variants(labels), strict=True)):
        rows = pd.DataFrame(known.loc[known["estimator"] == label])
        rows = rows.sort_values(by="group_size")
        sizes = rows["group_size"].to_numpy(dtype=float)
        factor = sizes if scaled else np.ones(len(sizes))
        estimates = estimates_of(rows, value) * factor[:, None]
        # Points of different estimators stand side by side, a little apart, so that intervals do not overlap.
        at = sizes * 2.0 ** (0.12 * (place - (len(labels) - 1) / 2.0) / max(len(labels) / 2.0, 1.0))
        draw_series(ax, at, estimates, estimator_appearance(label), kind, shown[label])
    if frame.empty:
        draw_nothing(ax, "no estimators")
    elif group_size_of_run is not None:
        draw_landmark(ax, group_size_of_run)
    _ticks(ax, frame, group_size_of_run)
    ax.set_xlabel("group size (completions per prompt)")
    if scaled:
        ax.set_ylabel(in_metric(rf"{quantity.heading} $\times$ group size", frame.attrs))
    else:
        ax.set_ylabel(axis_label(quantity, frame.attrs, reference_name(frame)))
    write_sentence(ax, sentence)
    legend_below(ax, keys)
    return ax


def _ticks(ax: Axes, frame: pd.DataFrame, group_size_of_run: int | None) -> None:
    import matplotlib.pyplot as plt

    sizes = {float(size) for size in frame["group_size"].dropna()}
    if sizes:
        marked = sizes if group_size_of_run is None else sizes | {float(group_size_of_run)}
        ax.set_xlim(min(marked) / 1.3, max(*marked, ax.dataLim.x1) * 1.3)
        ax.set_xticks(sorted(marked))
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda x, _: f"{x:g}" + ("\nrun" if x == group_size_of_run else "")))
    ax.xaxis.set_minor_locator(plt.NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)


def plot_prompt_parts(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw both components of each estimator's variance with their intervals: filled within prompts, open between.

    They are points, not stacked bars: both are unbiased, and where the one between prompts comes out negative its
    interval alone is drawn, from 0. Estimators in another unit than the reference's are left out, with a sentence. Of a
    frame with the relative noise the rows are chosen by it as in :func:`plot_group_size`: multiples of one another
    share one, that of the reference.

    Args:
        table: the frame of :meth:`gradstats.analyses.VarianceComparison.variance_components`.
        ax: where to draw; None makes a figure as high as the rows need.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    names = [component.name for component in VARIANCE_COMPONENTS]
    columns = [column for name in names for column in with_ends(name)]
    require_columns(frame, ["estimator", *columns], "draw what .variance_components() gives")
    frame, sentence = rows_of_one_unit(frame, VARIANCE_COMPONENTS)
    if JUDGED.name in frame:
        frame, _, sentence = _chosen(frame, JUDGED.name, sentence)
    labels = row_labels(frame)
    places, rows_height = rows_of_own_height(labels)
    signs = interval_keys(frame, names, forest=True)
    keys = [component.panel_label.replace("\n", " ") for component in VARIANCE_COMPONENTS]
    if ax is None:
        height = 1.15 * rows_height + sentence_height(sentence) + legend_height(keys, signs)
        _, ax = plt.subplots(figsize=(mpl.rcParams["figure.figsize"][0], height), layout="constrained")
    estimates = {name: estimates_of(frame, name) for name in names}
    ax.set_xlim(*forest_limits(np.concatenate(list(estimates.values())).ravel(), False, 0.0))
    if len(frame):
        draw_landmark(ax, 0.0)
    for row, record in enumerate(frame.to_dict("records")):
        color, marker = estimator_appearance(str(record["estimator"]))
        known = any(np.isfinite(of_all[row]).any() for of_all in estimates.values())
        # An estimator with neither component says so once, not twice on top of itself.
        for name, offset in zip(names, (-0.16, 0.16), strict=True) if known else [(names[0], 0.0)]:
            value, low, high = map(float, estimates[name][row])
            draw_row(ax, float(places[row]) + offset, (value, low, high), color, marker, hollow=name == names[1])
    set_rows(ax, labels, places)
    plain_ticks(ax, logarithmic=False)
    ax.set_xlabel(in_metric(COMPONENT_LABEL, frame.attrs))
    write_sentence(ax, sentence)
    if frame.empty:
        draw_nothing(ax, "no estimators")
        return ax
    ink = mpl.rcParams["text.color"]
    drawn = [
        plt.Line2D([], [], color=ink, marker="o", linestyle="none", label=label, markerfacecolor=face)
        for label, face in zip(keys, (ink, "none"), strict=True)
    ]
    legend_below(ax, [*drawn, *signs])
    return ax


def _chosen(
    frame: pd.DataFrame, value: str, sentence: str, *, named_by_size: bool = False
) -> tuple[pd.DataFrame, dict[str, str], str]:
    """Return the rows to draw, what each is called, and the sentence with what is left out."""
    short = short_rows(frame, value, named_by_size=named_by_size)
    return short.drawn, names_in(short.drawn), " ".join(filter(None, [sentence, short.sentence]))
