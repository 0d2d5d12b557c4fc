"""Variance against the group size, and its components within prompts and between them."""

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
    rows_of_one_unit,
    sentence_height,
    variants,
    write_sentence,
)
from gradstats.plots.quantities import COMPONENT_LABEL, QUANTITIES, VARIANCE_COMPONENTS, in_metric
from gradstats.plots.style import stroke
from gradstats.plots.variance import (
    draw_landmark,
    draw_row,
    forest_limits,
    plain_ticks,
    row_labels,
    rows_of_own_height,
    set_rows,
)
from gradstats.system.late import pd, plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = tuple(QUANTITIES[name] for name in ("trace_cov", "within_prompt", "noise_to_signal"))


def plot_group_size(
    table: WithFrame | pd.DataFrame,
    *,
    ax: Axes | None = None,
    value: str = "trace_cov",
    per_completion: bool = True,
    equivalence: pd.DataFrame | None = None,
    group_size_of_run: int | None = None,
) -> Axes:
    """Draw variance against group size on log axes, one line per estimator.

    Where the value has a unit, estimators in another unit than the reference's are left out, with a sentence.

    Args:
        table: frames of :func:`gradstats.compare` at several group sizes, or of ``.variance_components()``, stacked;
            columns ``estimator``, ``group_size`` and ``value`` with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: ``"trace_cov"``, ``"within_prompt"`` or ``"noise_to_signal"``.
        per_completion: multiply by the group size, which compares groups at an equal total of completions; noise to
            signal is drawn as it is.
        equivalence: rows of :meth:`gradstats.analyses.EquivalentGroupSize.to_frame`: from each estimator a dotted line
            runs to the group size of RLOO with the same variance, which the legend states. It is about
            ``"within_prompt"`` at an equal total of completions.
        group_size_of_run: completions per prompt that were drawn; a dashed line, and "run" below its number, mark it.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, missing columns, or an equivalence drawn on an axis it is not about.
    """
    frame = as_frame(table)
    quantity = quantity_to_draw(value, DRAWN)
    require_columns(frame, ["estimator", "group_size", *with_ends(value)], "draw what compare() gives")
    frame, sentence = rows_of_one_unit(frame, [quantity])
    if equivalence is not None and not (value == "within_prompt" and per_completion):
        raise ValueError(
            "equivalence compares within-prompt variance at equal completions: draw it with value='within_prompt' and "
            "per_completion=True"
        )
    estimators = list(dict.fromkeys(map(str, frame["estimator"])))
    labels = _labels(frame, equivalence)
    keys = interval_keys(frame, [value])
    if ax is None:
        width, height = plt.rcParams["figure.figsize"]
        height += legend_height(list(labels.values()), keys) + sentence_height(sentence)
        _, ax = plt.subplots(figsize=(width, height))
    scaled = per_completion and quantity.has_unit
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for place, (name, kind) in enumerate(zip(estimators, variants(estimators), strict=True)):
        rows = pd.DataFrame(frame.loc[[str(label) == name for label in frame["estimator"]]])
        rows = rows.sort_values(by="group_size")
        sizes = rows["group_size"].to_numpy(dtype=float)
        factor = sizes if scaled else np.ones(len(sizes))
        estimates = estimates_of(rows, value) * factor[:, None]
        # Points of different estimators stand side by side, a little apart, so that intervals do not overlap.
        at = sizes * 2.0 ** (0.12 * (place - (len(estimators) - 1) / 2.0) / max(len(estimators) / 2.0, 1.0))
        draw_series(ax, at, estimates, estimator_appearance(name), kind, labels[name])
    if frame.empty:
        draw_nothing(ax, "no estimators")
    elif equivalence is not None:
        _draw_equivalence(ax, frame, value, equivalence)
    if group_size_of_run is not None and len(frame):
        draw_landmark(ax, group_size_of_run)
    _ticks(ax, frame, group_size_of_run)
    ax.set_xlabel("group size (completions per prompt)")
    label = rf"{quantity.heading} $\times$ group size" if scaled else quantity.axis_label
    ax.set_ylabel(in_metric(label, frame.attrs))
    write_sentence(ax, sentence)
    legend_below(ax, keys)
    return ax


def _labels(frame: pd.DataFrame, equivalence: pd.DataFrame | None) -> dict[str, str]:
    """Name each estimator for the legend, with the equivalent group size of RLOO where that is known."""
    labels = names_in(frame)
    if equivalence is not None:
        require_columns(
            equivalence, ["estimator", "group_size", "equivalent_group_size"], "draw what equivalent_group_size() gives"
        )
        for row in equivalence.to_dict("records"):
            name, equal = str(row["estimator"]), float(row["equivalent_group_size"])
            if name in labels:
                size = f"{equal:.3g}" if np.isfinite(equal) else r"$\infty$"
                low, high = (float(row.get(f"equivalent_group_size_{end}", np.nan)) for end in ("low", "high"))
                # What is equal for every policy has no interval, and neither has what is not resolved.
                if np.isfinite(low) and np.isfinite(high) and high - low > 1e-6 * equal:
                    size += f" [{low:.3g}, {high:.3g}]"
                labels[name] += f" (at {row['group_size']:g}: RLOO at {size})"
    return labels


def _draw_equivalence(ax: Axes, frame: pd.DataFrame, value: str, equivalence: pd.DataFrame) -> None:
    heights = {
        (str(name), float(size)): float(number) * float(size)
        for name, size, number in zip(frame["estimator"], frame["group_size"], frame[value], strict=True)
    }
    for row in equivalence.to_dict("records"):
        name, size, equal = str(row["estimator"]), float(row["group_size"]), float(row["equivalent_group_size"])
        if (name, size) not in heights or not np.isfinite(equal):
            continue
        height = heights[name, size]
        color = estimator_appearance(name).color
        ax.plot([size, equal], [height, height], color=color, linestyle=":", linewidth=stroke(1.0))
        ax.plot([equal], [height], marker="|", color=color, zorder=4)


def _ticks(ax: Axes, frame: pd.DataFrame, group_size_of_run: int | None) -> None:
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

    They are points, not stacked bars: both are unbiased, and the one between prompts may come out negative. Estimators
    in another unit than the reference's are left out, with a sentence.

    Args:
        table: the frame of :meth:`gradstats.analyses.VarianceComparison.variance_components`.
        ax: where to draw; None makes a figure as high as the rows need.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    names = [component.name for component in VARIANCE_COMPONENTS]
    columns = [column for name in names for column in with_ends(name)]
    require_columns(frame, ["estimator", *columns], "draw what .variance_components() gives")
    frame, sentence = rows_of_one_unit(frame, VARIANCE_COMPONENTS)
    labels = row_labels(frame)
    places, rows_height = rows_of_own_height(labels)
    signs = interval_keys(frame, names, forest=True)
    keys = [component.panel_label.replace("\n", " ") for component in VARIANCE_COMPONENTS]
    if ax is None:
        height = 1.15 * rows_height + sentence_height(sentence) + legend_height(keys, signs)
        _, ax = plt.subplots(figsize=(plt.rcParams["figure.figsize"][0], height))
    ax.set_xlim(*forest_limits(frame[columns].to_numpy(dtype=float).ravel(), False, 0.0))
    if len(frame):
        draw_landmark(ax, 0.0)
    for row, record in enumerate(frame.to_dict("records")):
        color, marker = estimator_appearance(str(record["estimator"]))
        known = [column for column in columns if np.isfinite(record[column])]
        # An estimator with neither component says so once, not twice on top of itself.
        for name, offset in zip(names, (-0.16, 0.16), strict=True) if known else [(names[0], 0.0)]:
            estimate = (float(record[name]), float(record[f"{name}_low"]), float(record[f"{name}_high"]))
            draw_row(ax, float(places[row]) + offset, estimate, color, marker, hollow=name == names[1])
    set_rows(ax, labels, places)
    plain_ticks(ax, logarithmic=False)
    ax.set_xlabel(in_metric(COMPONENT_LABEL, frame.attrs))
    write_sentence(ax, sentence)
    if frame.empty:
        draw_nothing(ax, "no estimators")
        return ax
    ink = plt.rcParams["text.color"]
    drawn = [
        plt.Line2D([], [], color=ink, marker="o", linestyle="none", label=label, markerfacecolor=face)
        for label, face in zip(keys, (ink, "none"), strict=True)
    ]
    legend_below(ax, [*drawn, *signs])
    return ax
