"""Variance against group size."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_frames import group_sizes, prompt_parts

from gradstats import plots
from gradstats.plots import estimator_appearance


def lines_of(ax):
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    return {line.get_label().replace("\u00a0", " "): line for line in named}


def test_the_relative_noise_is_drawn_as_it_is_and_variances_at_equal_completions():
    frame = group_sizes("ordinary")
    rows = frame[frame["estimator"] == "reinforce"]
    ax = plots.plot_group_size(frame)
    assert (lines_of(ax)["REINFORCE"].get_color(), lines_of(ax)["REINFORCE"].get_marker()) == estimator_appearance(
        "reinforce"
    )
    assert ax.get_ylabel().replace("\n", " ") == "samples needed for equal noise, relative to RLOO"
    scaled = plots.plot_group_size(frame, value="trace_cov")
    plain = plots.plot_group_size(frame, value="trace_cov", per_completion=False)
    for drawn, expected in (
        (ax, rows["matched_ratio"]),
        (scaled, rows["trace_cov"] * rows["group_size"]),
        (plain, rows["trace_cov"]),
    ):
        np.testing.assert_allclose(lines_of(drawn)["REINFORCE"].get_ydata(), expected)
    with pytest.raises(ValueError, match="value='spread' cannot be drawn: choose from matched_ratio, trace_cov"):
        plots.plot_group_size(frame, value="spread")


def test_multiples_of_one_estimator_share_a_line_whatever_their_scale():
    frame = group_sizes("ordinary")
    ends = [f"matched_ratio{end}" for end in ("", "_low", "_high")]
    frame.loc[frame["estimator"].isin(["rloo", "group_mean"]), ends] = 1.0
    frame.loc[(frame["estimator"] == "reinforce") & (frame["group_size"] == 8), "matched_ratio"] = np.nan
    assert frame.query("estimator == 'group_mean'")["trace_cov"].ne(0.0).all()
    ax = plots.plot_group_size(frame)
    assert len(lines_of(ax)) == frame["estimator"].nunique() - 2
    np.testing.assert_allclose(lines_of(ax)["RLOO = group mean"].get_ydata(), 1.0)
    assert ax.get_title(loc="right") == "Not resolved: REINFORCE, N=8."
    assert "REINFORCE" not in lines_of(ax)


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


def test_multiples_share_the_row_of_the_reference():
    frame = prompt_parts("ordinary").query("estimator != 'grpo'")  # which is in another unit
    parts = frame[["within_prompt", "between_prompt"]]
    at = [line.get_xdata()[0] for line in plots.plot_prompt_parts(frame).lines if line.get_linestyle() == "None"]
    np.testing.assert_allclose([one for one in at if one > 0], [one for one in parts.to_numpy().ravel() if one > 0])
    frame.attrs["reference"] = "rloo"
    alike = frame["estimator"].isin(["rloo", "group_mean"])
    for column in ("matched_ratio", "matched_ratio_low", "matched_ratio_high"):
        frame[column] = np.where(alike, 1.0, 2.0 + np.arange(len(frame)))
    ax = plots.plot_prompt_parts(frame)
    shown = [" ".join(label.get_text().split()) for label in ax.get_yticklabels()]
    assert "RLOO = group mean" in shown
    assert len(shown) == len(frame) - 1
    at = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    assert frame.set_index("estimator").loc["rloo", "within_prompt"] in at


def test_of_a_negative_component_the_interval_from_0_is_drawn():
    frame = prompt_parts("one row")
    frame[["between_prompt", "between_prompt_low", "between_prompt_high"]] = -2.0, -9.0, 5.0
    ax = plots.plot_prompt_parts(frame)
    (dashed,) = (line for line in ax.lines if line.get_linestyle() == "--" and len(set(line.get_ydata())) == 1)
    assert list(dashed.get_xdata()) == [0.0, 5.0]
    assert -2.0 not in [line.get_xdata()[0] for line in ax.lines]


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
