"""Curves in a run: names, table, caption, figure."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from comparison_batches import quietly, sized_batch

import gradstats as gs
from gradstats.report.analysis_tables import curve_caption, curve_name, curve_table, draw_curve

mpl.use("Agg")


def frame_of(label, parameter, values):
    batch, scores = sized_batch()
    return quietly(gs.variance_curve, batch, label, parameter, values, scores).to_frame()


def test_names_are_those_of_files():
    assert curve_name("recipe:dapo(loo=True)", "clip_width") == "curve_recipe_dapo_loo_true_clip_width"


def test_the_table_has_a_row_for_each_value():
    frame = frame_of("asymmetric(loo=True)", "delta", [-0.5, 0.0, 0.25])
    table = curve_table(frame)
    headings, rows = table.cells("plain")
    assert headings[0] == "delta"
    assert [row[0] for row in rows] == ["−0.5", "0", "0.25"]
    assert table.columns["matched ratio"][1] == (1.0, 1.0, 1.0)
    assert "asymmetric(loo=True) along delta" in table.caption
    assert "asymmetric(loo=True) along delta" in curve_caption(frame)


def test_group_sizes_are_drawn_at_an_equal_total_of_completions():
    frame = frame_of("rloo", "group_size", [2, 4, 8])
    ax = draw_curve(frame)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), frame["trace_cov"] * frame["value"])
    plt.close("all")
