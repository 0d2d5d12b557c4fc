"""The figure of noise at equal tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fixture_frames import allocation, shares

from gradstats import analyses, plots
from gradstats.analyses import plot_critic
from gradstats.analyses.critic import FAILED, RECOVERED
from gradstats.estimators.display_names import in_words
from gradstats.plots.shares import lines_of_units


def test_measured_sizes_are_filled_and_extrapolated_ones_open():
    frame = allocation("ordinary")
    ax = analyses.plot_allocation(frame)
    filled = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    for label, rows in frame.groupby("estimator", sort=False):
        measured = rows.loc[rows["group_size"] <= 8]
        np.testing.assert_array_equal(filled[in_words(label)].get_ydata(), measured["relative_noise"])
    (guessed,) = [line for line in ax.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    np.testing.assert_array_equal(guessed.get_ydata(), frame.query("group_size == 32")["relative_noise"])
    assert ax.get_legend_handles_labels()[1] == ["group mean", "RLOO", "REINFORCE"]
    many = analyses.plot_allocation(frame.assign(n_prompts=frame["n_prompts"] * 16.4))
    for drawn, ticks in (
        (ax, ["2\n(500)", "4\n(250)", "8\n(125)", "32\n(31.2)"]),
        (many, ["2\n(8,200)", "4\n(4,100)", "8\n(2,050)", "32\n(512)"]),
    ):
        assert [label.get_text() for label in drawn.get_xticklabels()] == ticks


def test_multiples_of_rloo_share_its_line_and_many_lines_are_too_many():
    frame = allocation("ordinary")
    of_rloo = frame.query("estimator == 'rloo'")
    ax = analyses.plot_allocation(pd.concat([of_rloo.assign(estimator="dr_grpo"), frame], ignore_index=True))
    shown = [label.replace("\u00a0", " ") for label in ax.get_legend_handles_labels()[1]]
    assert shown == ["group mean", "RLOO = Dr. GRPO baseline", "REINFORCE"]
    # One baseline with other parameters is told apart without colour.
    first = of_rloo.assign(estimator="token_mean(loo=True)")
    pair = [first, first.assign(estimator="token_mean", relative_noise=first["relative_noise"] * 1.1)]
    lines = analyses.plot_allocation(pd.concat(pair, ignore_index=True)).lines
    lines = [line for line in lines if not line.get_label().startswith("_")]
    assert [(line.get_linestyle(), line.get_fillstyle()) for line in lines] == [("-", "full"), ("--", "bottom")]
    many = [of_rloo.assign(estimator=f"mine_{at}", relative_noise=0.1 * at) for at in range(1, 21)]
    ax = analyses.plot_allocation(pd.concat([frame, *many], ignore_index=True))
    assert len(ax.get_legend_handles_labels()[1]) == 8
    assert "RLOO" in ax.get_legend_handles_labels()[1]
    assert "more rows in between" in ax.get_title(loc="right")


def frame():
    states = ["all", "step 0", "step 1 and later", RECOVERED, FAILED]
    found = pd.DataFrame({"states": states, "n": 9, "n_prompts": 3})
    found["bias"] = [0.0, 0.1, -0.1, -0.2, 0.2]
    found["explained_variance"] = [0.5, 0.2, 0.6, np.nan, np.nan]
    for name in ("bias", "explained_variance"):
        found[f"{name}_low"], found[f"{name}_high"] = found[name] - 0.1, found[name] + 0.1
    return found


def test_each_set_of_states_has_its_place():
    bias, explained = plot_critic(frame())
    assert [tick.get_text() for tick in explained.get_xticklabels()] == ["0", "1+", "recovered", "not recovered"]
    drawn = [line.get_ydata() for line in bias.get_lines() if len(line.get_ydata()) == 2 and line.get_marker() in "oD"]
    assert [list(values) for values in drawn] == [[0.1, -0.1], [-0.2, 0.2]]
    assert bias.get_ylabel() == "bias of the head"


def test_what_is_not_resolved_or_has_no_interval_is_said():
    _, explained = plot_critic(frame().assign(explained_variance=np.nan))
    assert [text.get_text() for text in explained.texts] == ["not resolved"]
    with pytest.raises(ValueError, match="lacks the column"):
        plot_critic(frame().drop(columns="bias_low"))
    axes = plot_critic(frame().assign(bias_low=np.nan, bias_high=np.nan))
    assert [[line.get_marker() for line in ax.get_lines()].count("x") for ax in axes] == [1, 0]
    assert [text.get_text() for text in axes[0].get_figure().legends[0].get_texts()] == ["without interval"]


def test_each_bin_has_its_share_and_lines_differ_in_grey():
    frame = shares("ordinary")
    ax = plots.plot_shares(frame)
    lines = [line for line in ax.lines if len(line.get_xdata()) == 3]
    for line, (_, rows) in zip(lines, frame.groupby("estimator", sort=False), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), rows["share_of_gradient"])
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 3
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0–\n0.25", "0.25–\n0.5", "0.5–\n0.99"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("success rate of the prompt", "share of gradient")
    assert ax.get_legend_handles_labels()[1] == ["RLOO", "REINFORCE", "group mean (not resolved)"]


def test_bins_without_any_weight_are_no_reason_to_draw():
    frame = shares("ordinary")
    ends = ["share_of_gradient", "share_of_gradient_low", "share_of_gradient_high"]
    assert lines_of_units(frame, fewest_resolved=1) is not None
    frame[ends] = np.nan
    frame.loc[frame["success_low"] == 0.0, ends] = 0.0
    assert lines_of_units(frame, fewest_resolved=1) is None


def test_bins_of_length():
    frame = shares("ordinary").rename(columns={"success_low": "length_low", "success_high": "length_high"})
    frame = frame.assign(**{f"share_of_variance{end}": 0.5 for end in ("", "_low", "_high")})
    ax = plots.plot_shares(frame, value="share_of_variance")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("completion length (tokens)", "share of variance")
    with pytest.raises(ValueError, match="value='scale' cannot be drawn: choose from share_of_gradient"):
        plots.plot_shares(frame, value="scale")
