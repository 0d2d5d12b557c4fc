"""Estimates without an interval, intervals without an estimate, and ends that are unknown."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from fixture_frames import CASES
from legibility import assert_legible

from gradstats.plots.marks import INTERVAL_ALONE, NO_INTERVAL, OUTSIDE, draw_intervals, interval_keys, without_interval

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")

INF, NAN = np.inf, np.nan
#     value, low, high: complete, bare, unbounded, not resolved at all, an interval alone, outside of it, an end alone
ROWS = np.array(
    [
        [1.0, 0.5, 2.0],
        [1.0, NAN, NAN],
        [1.0, 0.5, INF],
        [NAN, NAN, NAN],
        [NAN, 0.0, 1.0],
        [1.2, 0.0, 1.0],
        [NAN, 0.5, INF],
    ]
)


def test_only_a_value_without_either_end_has_no_interval():
    assert without_interval(*ROWS.T).tolist() == [False, True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("chosen", "forest", "labels"),
    [
        ([0, 2, 3], True, []),
        ([0, 1], False, [NO_INTERVAL]),
        ([4, 5], False, []),
        ([6], True, [INTERVAL_ALONE]),
        ([1, 4, 5], True, [NO_INTERVAL, INTERVAL_ALONE, OUTSIDE]),
    ],
)
def test_the_legend_has_the_signs_that_occur(chosen, forest, labels):
    keys = interval_keys(ROWS[[0]], ROWS[chosen], forest=forest)
    assert [key.get_label() for key in keys] == labels


def test_equal_up_to_rounding_is_not_outside():
    assert interval_keys(np.array([[1.0, 1.0, 1.0 - 1e-15]]), forest=True) == []


def test_lines_span_known_ends_and_arrows_and_crosses_stand_for_the_others():
    _, ax = plt.subplots()
    draw_intervals(ax, np.arange(4.0), *ROWS[:4].T, "k")
    spans = [tuple(path[:, 1]) for path in ax.collections[0].get_segments()]
    assert spans == [(0.5, 2.0), (1.0, 1.0), (0.5, 1.0)]
    (cross,) = ax.lines
    assert (cross.get_marker(), tuple(cross.get_xdata())) == ("x", (1.0,))
    (arrow,) = ax.texts
    assert arrow.xy == (2.0, 1.0)


WITH_INTERVALS = [name for name in CASES if name not in ("token_energy", "proxy", "length_reward", "block_heatmap")]


@pytest.mark.parametrize("name", WITH_INTERVALS)
def test_no_figure_draws_an_estimate_without_interval_as_an_exact_one(name):
    plot, frame = CASES[name]
    for shape, expected in (("nan intervals", True), ("ordinary", False)):
        plot(frame(shape))
        figure = plt.gcf()
        figure.canvas.draw()
        crosses = [
            line for ax in figure.axes for line in ax.lines if line.get_marker() == "x" and len(line.get_xdata())
        ]
        named = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert bool(crosses) is (NO_INTERVAL in named) is expected, shape
        assert_legible(figure)
