"""Variance against group size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fixture_frames import group_sizes, prompt_parts

from gradstats import plots
from gradstats.plots import estimator_appearance


def test_group_sizes_are_drawn_at_equal_completions():
    frame = group_sizes("ordinary")
    ax = plots.plot_group_size(frame)
    first = ax.lines[0]
    rows = frame[frame["estimator"] == "rloo"]
    np.testing.assert_allclose(first.get_ydata(), rows["trace_cov"] * rows["group_size"])
    assert (first.get_color(), first.get_marker()) == estimator_appearance("rloo")
    plain = plots.plot_group_size(frame, per_completion=False)
    np.testing.assert_allclose(plain.lines[0].get_ydata(), rows["trace_cov"])


def test_equivalence_is_a_line_to_the_size_of_rloo():
    frame = group_sizes("ordinary").rename(columns=lambda name: name.replace("trace_cov", "within_prompt"))
    row = {"estimator": "reinforce", "group_size": 4, "equivalent_group_size": 5.5}
    ax = plots.plot_group_size(frame, value="within_prompt", equivalence=pd.DataFrame([row]))
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in dotted] == [[4, 5.5]]
    legend = {text.get_text() for text in ax.get_figure().legends[0].get_texts()}
    assert "REINFORCE (at 4: RLOO at 5.5)" in legend
    ends = {"equivalent_group_size_low": 4.25, "equivalent_group_size_high": 7.0}
    ax = plots.plot_group_size(frame, value="within_prompt", equivalence=pd.DataFrame([row | ends]))
    texts = [text.get_text().replace("\n", " ") for text in ax.get_figure().legends[0].get_texts()]
    assert "REINFORCE (at 4: RLOO at 5.5 [4.25, 7])" in texts
    unbounded = pd.DataFrame([row | {"equivalent_group_size": np.inf}])
    ax = plots.plot_group_size(frame, value="within_prompt", equivalence=unbounded)
    assert not [line for line in ax.lines if line.get_linestyle() == ":"]
    assert "REINFORCE (at 4: RLOO at $\\infty$)" in {text.get_text() for text in ax.get_figure().legends[0].get_texts()}
    with pytest.raises(ValueError, match="equivalence compares within-prompt variance at equal completions"):
        plots.plot_group_size(group_sizes("ordinary"), equivalence=pd.DataFrame([row]))


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="value='spread' cannot be drawn: choose from trace_cov"):
        plots.plot_group_size(group_sizes("ordinary"), value="spread")


def test_the_group_size_of_the_run_is_marked():
    figure_without = plots.plot_group_size(group_sizes("ordinary"))
    assert figure_without.get_xlim()[1] < 16
    ax = plots.plot_group_size(group_sizes("ordinary"), group_size_of_run=16)
    assert [list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == "--"][-1] == [16, 16]
    ax.get_figure().canvas.draw()
    shown = [label.get_text() for label in ax.get_xticklabels()]
    assert shown == ["2", "4", "8", "16\nrun"]
    assert ax.get_xlim()[1] > 16
    (legend,) = ax.get_figure().legends
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0


def test_both_parts_are_drawn_where_they_are():
    frame = prompt_parts("ordinary").query("estimator != 'grpo'")  # which is in another unit
    ax = plots.plot_prompt_parts(frame)
    at = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    np.testing.assert_allclose(at, frame[["within_prompt", "between_prompt"]].to_numpy().ravel())


def test_an_estimator_with_neither_component_says_so_once():
    frame = prompt_parts("one row")
    frame[[column for column in frame if "prompt" in column]] = np.nan
    ax = plots.plot_prompt_parts(frame)
    assert [text.get_text() for text in ax.texts] == ["not resolved"]


def test_points_within_prompts_are_filled_and_between_prompts_open():
    ax = plots.plot_prompt_parts(prompt_parts("one row"))
    within, between = (line for line in ax.lines if line.get_linestyle() == "None")
    assert within.get_markerfacecolor() == within.get_color()
    assert between.get_markerfacecolor() == ax.get_facecolor()
    assert within.get_ydata()[0] < between.get_ydata()[0]
    keys = [text.get_text() for text in ax.get_figure().legends[0].get_texts()]
    assert keys == ["within prompts", "between prompts"]
    assert ax.get_xlabel() == "component of tr Cov"
