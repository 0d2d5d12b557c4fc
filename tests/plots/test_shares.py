"""The share of a gradient by bins."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from fixture_frames import shares

from gradstats import plots

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_each_bin_has_its_share_and_lines_differ_in_grey():
    frame = shares("ordinary")
    ax = plots.plot_shares(frame)
    lines = [line for line in ax.lines if len(line.get_xdata()) == 3]
    for line, (_, rows) in zip(lines, frame.groupby("estimator", sort=False), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), rows["share_of_gradient"])
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 3
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0–\n0.25", "0.25–\n0.5", "0.5–\n0.99"]
    assert ax.get_xlabel() == "success rate of the prompt"
    assert ax.get_ylabel() == "share of gradient"


def test_an_estimator_without_shares_says_so():
    ax = plots.plot_shares(shares("ordinary"))
    assert ax.get_legend_handles_labels()[1] == ["RLOO", "REINFORCE", "group mean (not resolved)"]


def test_bins_of_length():
    frame = shares("ordinary").rename(columns={"success_low": "length_low", "success_high": "length_high"})
    frame = frame.assign(**{f"share_of_variance{end}": 0.5 for end in ("", "_low", "_high")})
    ax = plots.plot_shares(frame, value="share_of_variance")
    assert ax.get_xlabel() == "completion length (tokens)"
    assert ax.get_ylabel() == "share of variance"
    with pytest.raises(ValueError, match="value='scale' cannot be drawn: choose from share_of_gradient"):
        plots.plot_shares(frame, value="scale")
