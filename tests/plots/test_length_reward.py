"""Reward against length, and quantities by bins of length."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fixture_frames import completions, length_bins
from legibility import assert_legible

from gradstats import plots
from gradstats.stats import length_reward_correlation

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_reward_and_length_are_relative_to_their_prompt():
    frame = completions("ordinary")
    ax = plots.plot_length_reward(frame)
    at = np.asarray(ax.collections[0].get_offsets())
    means = frame.groupby("prompt_id")[["length", "reward"]].transform("mean")
    np.testing.assert_allclose(at, frame[["length", "reward"]] - means)


def test_the_correlation_is_written_with_its_interval():
    frame = completions("ordinary")
    correlation = length_reward_correlation(lengths=frame["length"], rewards=frame["reward"], groups=frame["prompt_id"])
    low, high = correlation.confidence_interval()
    numbers = [f"{number:.2f}".replace("-", "−") for number in (correlation.correlation, low, high)]
    ax = plots.plot_length_reward(frame, correlation=correlation)
    assert ax.get_title(loc="left") == "correlation {} [{}, {}]".format(*numbers)


def test_bins_of_short_completions_do_not_crowd_the_axis():
    edges = {"length_low": [3, 11, 12, 19], "length_high": [10, 11, 18, 183]}
    ends = {f"noise_to_signal{end}": [10.0, 20.0, 30.0, 40.0] for end in ("", "_low", "_high")}
    plots.plot_length_bins(pd.DataFrame(edges | ends))
    figure = plt.gcf()
    figure.canvas.draw()
    assert_legible(figure)


def test_a_bin_known_from_below_alone_is_a_triangle_at_its_bound():
    frame = length_bins("ordinary")
    ax = plots.plot_length_bins(frame)
    (triangle,) = [line for line in ax.lines if line.get_marker() == "^" and len(line.get_xdata())]
    np.testing.assert_array_equal(triangle.get_ydata(), frame["noise_to_signal_low"][:1])
    assert "at least" in ax.get_title(loc="left")


def test_bins_of_one_estimator_name_it():
    bins = {"length_low": [1.0, 3.0], "length_high": [2.0, 4.0], "noise_to_signal": [2.0, 3.0]}
    frame = pd.DataFrame(bins).assign(noise_to_signal_low=1.0, noise_to_signal_high=4.0)
    assert plots.plot_length_bins(frame).get_figure().legends == []
    (legend,) = plots.plot_length_bins(frame.assign(estimator="token_mean(loo=True)")).get_figure().legends
    assert [text.get_text() for text in legend.get_texts()] == ["token mean, leave-one-out"]
