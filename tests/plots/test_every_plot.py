"""Every plot function, on every shape of frame, at the narrowest width: nothing is clipped, nothing overlaps."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from fixture_frames import CASES, SHAPES
from legibility import assert_legible
from matplotlib.text import Text

# What shows numbers that depend on the metric; lengths, rewards and proxies do not.
IN_METRIC = (
    "variance",
    "variance_panels",
    "curve",
    "curve_panels",
    "group_size",
    "prompt_parts",
    "alpha_by_block",
    "length_bins",
    "allocation",
    "shares",
    "token_energy",
    "concentration",
    "token_correlation",
    "block_heatmap",
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_clipped_and_no_texts_overlap(name, shape):
    plot, frame = CASES[name]
    plot(frame(shape))
    figure = plt.gcf()
    figure.canvas.draw()
    assert figure.get_size_inches()[0] == 2.75
    assert_legible(figure)


@pytest.mark.parametrize("name", IN_METRIC)
def test_a_metric_that_is_not_euclidean_is_stated(name):
    plot, frame = CASES[name]
    drawn = frame("ordinary")
    for metric, stated in (("euclidean", False), ("adam(eps=1e-08, power=0.5, moments=1a)", True)):
        drawn.attrs["metric"] = metric
        plot(drawn)
        figure = plt.gcf()
        figure.canvas.draw()
        assert any("Adam's metric" in text.get_text() for text in figure.findobj(Text)) is stated
        assert_legible(figure)


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("_panels")])
def test_draws_on_the_axes_it_is_given(name):
    plot, frame = CASES[name]
    _, ax = plt.subplots()
    assert plot(frame("ordinary"), ax=ax) is ax


def test_missing_columns_are_named():
    for plot, frame in CASES.values():
        with pytest.raises(ValueError, match=r"the table lacks the column\(s\) "):
            plot(frame("ordinary").iloc[:, :0])
