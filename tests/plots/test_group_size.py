"""Variance against group size."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_frames import group_sizes, prompt_parts

from gradstats import plots
from gradstats.estimators.display_names import in_words
from gradstats.plots import estimator_appearance


def lines_of(ax):
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    return {line.get_label().replace("\u00a0", " "): line for line in named}


def test_the_relative_noise_is_drawn_as_it_is_and_variances_at_equal_completions():
    frame = group_sizes("ordinary")
    rows = frame[frame["estimator"] == "reinforce"]
    ax = plots.plot_group_size(frame)
    line = lines_of(ax)["REINFORCE"]
    np.testing.assert_allclose(line.get_ydata(), rows["matched_ratio"])
    assert (line.get_color(), line.get_marker()) == estimator_appearance("reinforce")
    assert ax.get_ylabel().replace("\n", " ") == "samples needed for equal noise, relative to RLOO"
    scaled = plots.plot_group_size(frame, value="trace_cov")
    np.testing.assert_allclose(lines_of(scaled)["REINFORCE"].get_ydata(), rows["trace_cov"] * rows["group_size"])
    plain = plots.plot_group_size(frame, value="trace_cov", per_completion=False)
    np.testing.assert_allclose(lines_of(plain)["REINFORCE"].get_ydata(), rows["trace_cov"])


def test_multiples_of_one_estimator_share_a_line_whatever_their_scale():
    frame = group_sizes("ordinary")
    ends = [f"matched_ratio{end}" for end in ("", "_low", "_high")]
    frame.loc[frame["estimator"].isin(["rloo", "group_mean"]), ends] = 1.0
    assert frame.query("estimator == 'group_mean'")["trace_cov"].ne(0.0).all()
    lines = lines_of(plots.plot_group_size(frame))
    assert len(lines) == frame["estimator"].nunique() - 1
    np.testing.assert_allclose(lines["RLOO = group mean"].get_ydata(), 1.0)


def test_of_many_estimators_those_at_both_ends_and_the_reference_are_drawn():
    frame = group_sizes("thirty")
    ax = plots.plot_group_size(frame)
    largest = frame[frame["group_size"] == 8].set_index("estimator")["matched_ratio"].sort_values()
    drawn = lines_of(ax)
    assert len(drawn) == 8
    assert {"RLOO", in_words(largest.index[0]), in_words(largest.index[-1])} <= set(drawn)
    assert f"{len(largest) - 8} more rows in between." in ax.get_title(loc="right").replace("\n", " ")


def test_an_estimator_without_relative_noise_is_named_and_not_drawn():
    frame = group_sizes("ordinary")
    frame.loc[(frame["estimator"] == "reinforce") & (frame["group_size"] == 8), "matched_ratio"] = np.nan
    ax = plots.plot_group_size(frame)
    assert ax.get_title(loc="right") == "Not resolved: REINFORCE, N=8."
    assert "REINFORCE" not in lines_of(ax)


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="value='spread' cannot be drawn: choose from matched_ratio, trace_cov"):
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


def test_multiples_share_the_row_of_the_reference():
    frame = prompt_parts("ordinary").query("estimator != 'grpo'")
    frame.attrs["reference"] = "rloo"
    for column in ("matched_ratio", "matched_ratio_low", "matched_ratio_high"):
        frame[column] = [
            1.0 if name in ("rloo", "group_mean") else 2.0 + at for at, name in enumerate(frame["estimator"])
        ]
    ax = plots.plot_prompt_parts(frame)
    shown = [label.get_text().replace("\n", " ") for label in ax.get_yticklabels()]
    assert "RLOO = group mean" in [" ".join(label.split()) for label in shown]
    assert len(shown) == len(frame) - 1
    of_rloo = frame.set_index("estimator").loc["rloo", "within_prompt"]
    assert of_rloo in [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]


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
