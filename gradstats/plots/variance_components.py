"""The components of the variance within prompts and between them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gradstats.plots.appearance import estimator_appearance
from gradstats.plots.forest import draw_landmark, draw_row, forest_limits, plain_ticks, rows_of_own_height, set_rows
from gradstats.plots.frames import WithFrame, as_frame, draw_nothing, require_columns
from gradstats.plots.intervals import interval_keys
from gradstats.plots.legend import legend_below, legend_height
from gradstats.plots.units import rows_of_one_unit, sentence_height, write_sentence
from gradstats.plots.variance import row_labels
from gradstats.stats.variance.quantities import COMPONENT_LABEL, VARIANCE_COMPONENTS, in_metric


def plot_prompt_parts(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw both components of each estimator's variance with their intervals: filled within prompts, open between.

    They are points, not stacked bars: both are unbiased, and the one between prompts may come out negative. Estimators
    in another unit than the reference's are left out, with a sentence.

    Args:
        table: the frame of :meth:`gradstats.stats.VarianceComparison.variance_components`.
        ax: where to draw; None makes a figure as high as the rows need.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    frame = as_frame(table)
    columns = [f"{component.name}{end}" for component in VARIANCE_COMPONENTS for end in ("", "_low", "_high")]
    require_columns(frame, ["estimator", *columns], "draw what .variance_components() gives")
    frame, sentence = rows_of_one_unit(frame, VARIANCE_COMPONENTS)
    labels = row_labels(frame)
    font_size = plt.rcParams["font.size"] * 7.0 / 8.0
    places, rows_height = rows_of_own_height(labels)
    signs = interval_keys(
        *(
            frame[[f"{part.name}{end}" for end in ("", "_low", "_high")]].to_numpy(dtype=float)
            for part in VARIANCE_COMPONENTS
        ),
        forest=True,
    )
    keys = [component.panel_label.replace("\n", " ") for component in VARIANCE_COMPONENTS]
    if ax is None:
        width = plt.rcParams["figure.figsize"][0]
        entries = [*keys, *(str(sign.get_label()) for sign in signs)]
        height = 1.15 * rows_height + sentence_height(sentence) + legend_height(entries, width, font_size)
        _, ax = plt.subplots(figsize=(width, height))
    ax.set_xlim(*forest_limits(frame[columns].to_numpy(dtype=float).ravel(), False, 0.0))
    if len(frame):
        draw_landmark(ax, 0.0)
    for row, record in enumerate(frame.to_dict("records")):
        color, marker = estimator_appearance(str(record["estimator"]))
        known = [column for column in columns if np.isfinite(record[column])]
        # An estimator with neither component says so once, not twice on top of itself.
        parts = zip(VARIANCE_COMPONENTS, (-0.16, 0.16), strict=True) if known else [(VARIANCE_COMPONENTS[0], 0.0)]
        for component, offset in parts:
            name = component.name
            estimate = (float(record[name]), float(record[f"{name}_low"]), float(record[f"{name}_high"]))
            draw_row(
                ax, float(places[row]) + offset, estimate, color, marker, hollow=component is VARIANCE_COMPONENTS[1]
            )
    set_rows(ax, labels, places)
    plain_ticks(ax, logarithmic=False)
    ax.set_xlabel(in_metric(COMPONENT_LABEL, frame.attrs))
    write_sentence(ax, sentence)
    if frame.empty:
        draw_nothing(ax, "no estimators")
        return ax
    ink = plt.rcParams["text.color"]
    drawn = [
        Line2D([], [], color=ink, marker="o", linestyle="none", label=label, markerfacecolor=face)
        for label, face in zip(keys, (ink, "none"), strict=True)
    ]
    legend_below(ax, font_size, [*drawn, *signs])
    return ax
