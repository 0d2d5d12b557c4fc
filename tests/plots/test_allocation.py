"""The figure of noise at equal tokens."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fixture_frames import allocation

from gradstats import plots

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_measured_sizes_are_filled_and_extrapolated_ones_open():
    frame = allocation("ordinary")
    ax = plots.plot_allocation(frame)
    filled = [line for line in ax.lines if not line.get_label().startswith("_")]
    for line, (_, rows) in zip(filled, frame.groupby("estimator", sort=False), strict=True):
        measured = rows.loc[rows["group_size"] <= 8]
        np.testing.assert_array_equal(line.get_ydata(), measured["relative_noise"])
    (guessed,) = [line for line in ax.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    np.testing.assert_array_equal(guessed.get_ydata(), frame.query("group_size == 32")["relative_noise"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2\n(500)", "4\n(250)", "8\n(125)", "32\n(31.2)"]
    assert ax.get_legend_handles_labels()[1] == ["RLOO", "REINFORCE", "group mean"]


def test_many_prompts_are_written_in_full():
    frame = allocation("ordinary")
    ax = plots.plot_allocation(frame.assign(n_prompts=frame["n_prompts"] * 16.4))
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks == ["2\n(8,200)", "4\n(4,100)", "8\n(2,050)", "32\n(512)"]


def test_one_baseline_with_other_parameters_is_told_apart_without_colour():
    frame = allocation("ordinary")
    first = frame.loc[frame["estimator"] == "rloo"].assign(estimator="token_mean(loo=True)")
    other = first.assign(estimator="token_mean", relative_noise=first["relative_noise"] * 1.1)
    ax = plots.plot_allocation(pd.concat([first, other], ignore_index=True))
    lines = [line for line in ax.lines if not line.get_label().startswith("_")]
    assert [(line.get_linestyle(), line.get_fillstyle()) for line in lines] == [("-", "full"), ("--", "bottom")]
    assert lines[0].get_marker() == lines[1].get_marker()


def test_estimators_of_equal_noise_share_a_line():
    frame = allocation("ordinary")
    alike = frame.loc[frame["estimator"] == "rloo"].assign(estimator="dr_grpo")
    ax = plots.plot_allocation(pd.concat([frame, alike], ignore_index=True))
    assert ax.get_legend_handles_labels()[1] == ["RLOO; Dr. GRPO baseline", "REINFORCE", "group mean"]
    fewer = alike.iloc[:-1].assign(estimator="grpo")
    ax = plots.plot_allocation(pd.concat([frame, fewer], ignore_index=True))
    assert ax.get_legend_handles_labels()[1] == ["RLOO", "REINFORCE", "group mean", "GRPO advantage"]
