"""Concentration of token energy, and correlation of token scores with distance."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fixture_frames import concentrations, correlations

from gradstats import plots

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_bins_stand_at_their_geometric_mean_and_are_named_by_their_ends():
    frame = correlations("ordinary")
    ax = plots.plot_token_correlation(frame)
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == len(frame) and line.get_marker() == "None"]
    np.testing.assert_allclose(line.get_xdata(), np.sqrt(frame["distance_first"] * frame["distance_last"]))
    np.testing.assert_array_equal(line.get_ydata(), frame["correlation"])
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["1", "2", "3–4", "5–8", "9–16", "17–32"]


def test_every_other_bin_is_named_where_they_are_many():
    names = [label.get_text() for label in plots.plot_concentration(concentrations("thirty")).get_xticklabels()]
    assert names == [str(2**power) if power % 2 == 0 else "" for power in range(12)]


def test_bins_without_an_estimate_are_left_out_and_an_unknown_interval_is_a_point():
    ax = plots.plot_concentration(concentrations("nan intervals"))
    assert len(ax.get_xticks()) == 5
    (bars,) = ax.collections
    intervals = bars.get_segments()
    assert len(intervals) == 5
    assert all(low == high for (_, low), (_, high) in intervals)


def test_a_profile_of_nothing_says_so():
    empty = pd.DataFrame({"tokens_first": [1], "tokens_last": [1]})
    empty[["share", "share_low", "share_high"]] = np.nan
    assert [text.get_text() for text in plots.plot_concentration(empty).texts] == ["no completions"]
