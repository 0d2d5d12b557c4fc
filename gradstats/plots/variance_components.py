"""What part of the variance lies within prompts and what part between them."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gradstats.plots.appearance import estimator_appearance
from gradstats.plots.forest import draw_landmark, draw_row, forest_height, forest_limits, plain_ticks, set_rows
from gradstats.plots.frames import as_frame, draw_nothing, require_columns
from gradstats.plots.units import refuse_mixed_units
from gradstats.plots.variance import row_labels

PARTS = ("within_prompt", "between_prompt")


def plot_prompt_parts(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draws both parts of each estimator's variance with their intervals: filled within prompts, open between.

    Parts are points, not stacked bars: both are unbiased, and the one between prompts may come out negative.

    Args:
        table: the frame of `gradstats.stats.VarianceComparison.prompt_parts`.
        ax: where to draw; None makes a figure as high as the rows need.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns, or estimators in different units.
    """
    frame = as_frame(table)
    columns = [f"{part}{end}" for part in PARTS for end in ("", "_low", "_high")]
    require_columns(frame, ["estimator", *columns], "draw what .prompt_parts() gives")
    refuse_mixed_units(frame["estimator"], "within_prompt")
    labels = row_labels(frame)
    if ax is None:
        _, ax = plt.subplots(figsize=(plt.rcParams["figure.figsize"][0], forest_height(labels) * 1.15 + 0.15))
    ax.set_xlim(*forest_limits(frame[columns].to_numpy(dtype=float).ravel(), False, 0.0))
    if len(frame):
        draw_landmark(ax, 0.0)
    for row, record in enumerate(frame.to_dict("records")):
        color, marker = estimator_appearance(str(record["estimator"]))
        known = [column for column in columns if np.isfinite(record[column])]
        # Of an estimator neither of whose parts is known this is said once, not twice on top of itself.
        for part, offset in zip(PARTS, (-0.16, 0.16), strict=True) if known else [(PARTS[0], 0.0)]:
            estimate = (float(record[part]), float(record[f"{part}_low"]), float(record[f"{part}_high"]))
            draw_row(ax, row + offset, estimate, color, marker, hollow=part == "between_prompt")
    set_rows(ax, labels)
    plain_ticks(ax, logarithmic=False)
    ax.set_xlabel("part of tr Cov")
    if frame.empty:
        draw_nothing(ax, "no estimators")
        return ax
    ink = plt.rcParams["text.color"]
    keys = [
        Line2D([], [], color=ink, marker="o", linestyle="none", label="within prompts"),
        Line2D([], [], color=ink, marker="o", linestyle="none", label="between prompts", markerfacecolor="none"),
    ]
    figure = ax.get_figure()
    assert figure is not None
    figure.legend(handles=keys, loc="outside upper center", ncols=2, borderaxespad=0.2)
    return ax
