"""Rows with intervals: limits, ticks, labels, and what is not resolved."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from gradstats.plots import style
from gradstats.plots.variance import (
    draw_row,
    forest_height,
    forest_limits,
    longest_line,
    plain_ticks,
    rows_of_own_height,
    set_rows,
    wrap_label,
)

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("values", "logarithmic", "landmark", "limits"),
    [
        ([2.0, 4.0], False, None, (2.0 - 0.12, 4.0 + 0.12)),  # 6% of the span on each side
        ([2.0, 4.0, NAN, INF], False, 0.0, (-0.24, 4.24)),
        ([1.0, 100.0, -5.0], True, None, (100.0**-0.06, 100.0**1.06)),
        ([3.0, 3.0], False, None, (2.7, 3.3)),  # a single value: a tenth of it
        ([NAN], False, None, (0.0, 1.0)),
        ([-1.0], True, None, (0.1, 10.0)),
    ],
)
def test_limits_show_every_finite_value_and_the_landmark(values, logarithmic, landmark, limits):
    assert forest_limits(np.array(values), logarithmic, landmark) == pytest.approx(limits)


@pytest.mark.parametrize(
    ("estimate", "markers", "interval"),
    [
        ((0.5, 0.2, 0.7), ["o"], (0.2, 0.7)),
        ((NAN, 0.2, 0.4), ["|"], (0.2, 0.4)),
        ((0.5, 0.2, INF), [">", "o"], (0.2, 1.0)),
        ((0.5, -INF, 0.7), ["<", "o"], (0.0, 0.7)),
        ((NAN, 0.2, INF), [">", "|"], (0.2, 1.0)),
    ],
)
def test_an_interval_without_an_end_runs_off_the_axis_with_an_arrow(estimate, markers, interval):
    _, ax = plt.subplots()
    ax.set_xlim(0.0, 1.0)
    draw_row(ax, 0.0, estimate, "k", "o")
    assert sorted(line.get_marker() for line in ax.lines if line.get_marker() != "None") == sorted(markers)
    assert tuple(next(line for line in ax.lines if line.get_marker() == "None").get_xdata()) == interval


def test_a_value_without_interval_is_a_cross_and_one_outside_of_it_is_joined_to_it():
    _, ax = plt.subplots()
    ax.set_xlim(0.0, 1.0)
    draw_row(ax, 0.0, (0.5, NAN, NAN), "k", "o")
    (bare,) = ax.lines
    assert (bare.get_marker(), bare.get_linestyle()) == ("x", "None")
    draw_row(ax, 1.0, (0.9, 0.2, 0.7), "k", "o")
    (dots,) = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert tuple(dots.get_xdata()) == (0.7, 0.9)
    draw_row(ax, 2.0, (NAN, 0.2, 0.4), "k", "o")
    assert ax.lines[-2].get_linestyle() == "--"


def test_many_rows_are_lower():
    each = [rows_of_own_height(["a"] * count)[1] - rows_of_own_height(["a"] * (count - 1))[1] for count in (10, 30)]
    assert each == pytest.approx(np.array([0.2, 0.15]) * plt.rcParams["font.size"] / 8.0)


def test_what_is_not_resolved_is_said_in_words():
    _, ax = plt.subplots()
    draw_row(ax, 2.0, (NAN, NAN, INF), "k", "o")
    assert [text.get_text() for text in ax.texts] == ["not resolved"]
    assert list(ax.lines) == []


def test_labels_break_before_and_between_their_parameters():
    assert wrap_label("group_mean(loo=True)") == "group_mean(loo=True)"
    assert wrap_label("length_weighted(alpha=0.8)") == "length_weighted\n(alpha=0.8)"
    assert (
        wrap_label("norm_weighted(loo=True, off_policy=True, k=1)", 30)
        == "norm_weighted\n(loo=True, off_policy=True,\nk=1)"
    )
    long = wrap_label("mine(first_parameter=0.123456, second_parameter=0.654321)", 30)
    assert long.split("\n") == ["mine", "(first_parameter=0.123456,", "second_parameter=0.654321)"]
    assert wrap_label("norm-weighted, α = 0.8, leave-one-out", 26) == "norm-weighted, α = 0.8,\nleave-one-out"
    model = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert wrap_label(model, 30).split("\n") == ["deepseek-ai/DeepSeek-R1-", "Distill-Qwen-1.5B"]
    assert longest_line() == 26
    with mpl.rc_context(style("icml", "full")):
        assert longest_line() == 40


def test_a_half_filled_marker_has_an_empty_half():
    _, ax = plt.subplots()
    draw_row(ax, 0.0, (0.5, 0.4, 0.6), "k", "o", fill="bottom")
    assert [line.get_fillstyle() for line in ax.lines if line.get_marker() == "o"] == ["bottom"]
    assert ax.lines[-1].get_markerfacecoloralt() == ax.get_facecolor()


def test_rows_stand_from_top_to_bottom_and_lines_of_labels_take_height():
    _, ax = plt.subplots()
    set_rows(ax, ["a", "b", "c"])
    assert ax.get_ylim() == (2.6, -0.6)
    size = plt.rcParams["font.size"] / 8.0
    assert forest_height(["a", "b", "c"]) == pytest.approx((3 * 0.2 + 0.5) * size)
    assert forest_height(["a\nb", "c"]) == pytest.approx((2 * 0.29 + 0.5) * size)
    assert forest_height([]) == pytest.approx((0.2 + 0.5) * size)


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [
        ((0.9, 21.0), ["1", "2", "5", "10", "20"]),
        ((0.9, 50.0), ["1", "3", "10", "30"]),
        ((0.9, 1.35), ["0.9", "1", "1.1", "1.2", "1.3"]),
        ((0.5, 5000.0), ["1", "10", "100", "1000"]),
    ],
)
def test_ticks_of_a_log_axis_are_plain_numbers(limits, ticks):
    figure, ax = plt.subplots()
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    plain_ticks(ax, logarithmic=True)
    figure.canvas.draw()
    shown = [label for label in ax.get_xticklabels() if limits[0] <= label.get_position()[0] <= limits[1]]
    assert [label.get_text() for label in shown] == ticks


def test_rows_are_as_high_as_their_own_labels_need():
    centres, height = rows_of_own_height(["one", "two\nlines", "one", "one"])
    assert np.diff(centres) == pytest.approx([1.225, 1.225, 1.0])
    assert centres[0] == 0.0
    more = rows_of_own_height(["one", "three\nlines\nhere", "one", "one"])[1]
    assert more - height == pytest.approx(0.09 * plt.rcParams["font.size"] / 8)
    assert rows_of_own_height([])[1] > 0
