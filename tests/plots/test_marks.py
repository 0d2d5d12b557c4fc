"""Estimates without an interval, intervals without an estimate, and ends that are unknown."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gradstats.plots.marks import (
    INTERVAL_ALONE,
    NO_INTERVAL,
    as_frame,
    draw_intervals,
    estimates_of,
    interval_keys,
    legend_below,
    legend_text,
)


def test_a_result_gives_its_frame_and_a_frame_is_taken_as_it_is():
    frame = pd.DataFrame({"a": [1]})
    assert as_frame(frame) is as_frame(SimpleNamespace(to_frame=lambda: frame)) is frame


INF, NAN = np.inf, np.nan
#: Value, low, high.
ROWS = np.array([
    [1.0, 0.5, 2.0],  # complete
    [1.0, NAN, NAN],  # bare
    [1.0, 0.5, INF],  # unbounded
    [NAN, NAN, NAN],  # not resolved at all
    [NAN, 0.0, 1.0],  # an interval alone
    [1.2, 0.0, 1.0],  # outside of it
    [NAN, 0.5, INF],  # an end alone
])  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "forest", "labels"),
    [
        ([0, 2, 3], True, []),
        ([0, 1], False, [NO_INTERVAL]),
        ([4], False, []),
        ([6], True, [INTERVAL_ALONE]),
        ([1, 5], True, [NO_INTERVAL, INTERVAL_ALONE]),
    ],
)
def test_the_legend_has_the_signs_that_occur(chosen, forest, labels):
    both = pd.concat([frame_of(ROWS[chosen]), frame_of(ROWS[[0] * len(chosen)]).add_prefix("y")], axis=1)
    keys = interval_keys(both, ["yx", "x", "unknown"], forest=forest)
    assert [key.get_label() for key in keys] == labels


def frame_of(rows):
    return pd.DataFrame(rows, columns=["x", "x_low", "x_high"])


def test_a_value_outside_of_its_interval_is_not_drawn_unless_by_rounding():
    found = estimates_of(frame_of([[1.2, 0.0, 1.0], [-0.1, 0.0, 1.0], [1.0, 1.0, 1.0 - 1e-15], [1.0, NAN, NAN]]), "x")
    np.testing.assert_array_equal(found[:, 0], [NAN, NAN, 1.0, 1.0])


def test_lines_span_known_ends_and_arrows_and_crosses_stand_for_the_others():
    _, ax = plt.subplots()
    draw_intervals(ax, np.arange(4.0), *ROWS[:4].T, "k")
    spans = [tuple(path[:, 1]) for path in ax.collections[0].get_segments()]
    assert spans == [(0.5, 2.0), (1.0, 1.0), (0.5, 1.0)]
    (cross,) = ax.lines
    assert (cross.get_marker(), tuple(cross.get_xdata())) == ("x", (1.0,))
    (arrow,) = ax.texts
    assert arrow.xy == (2.0, 1.0)


def test_a_bound_alone_is_a_triangle_that_the_legend_explains():
    rows, (_, ax) = np.array([[NAN, 0.5, INF], [NAN, -INF, 0.2], [NAN, 0.0, 1.0]]), plt.subplots()
    draw_intervals(ax, np.arange(3.0), *rows.T, "k")
    signs = [(line.get_marker(), *line.get_xdata(), *line.get_ydata()) for line in ax.lines]
    assert signs == [("^", 0.0, 0.5), ("v", 1.0, 0.2)]
    assert [key.get_label() for key in interval_keys(frame_of(rows), ["x"])] == ["at least", "at most"]


def test_what_leaves_nothing_out_is_not_drawn():
    rows = [[NAN, 0.0, INF], [NAN, -5.0, 3.0], [2.0, 0.0, INF], [-1.0, -3.0, -2.0], [-2.0, -3.0, INF], [-2.0, NAN, NAN]]
    frame = frame_of(rows)
    found = estimates_of(frame.rename(columns=lambda name: name.replace("x", "trace_cov")), "trace_cov")
    np.testing.assert_array_equal(found[:3], [[NAN, NAN, NAN], [NAN, 0.0, 3.0], [2.0, 0.0, INF]])
    assert np.isnan(found[3:]).all()


def test_a_label_breaks_before_its_parameters_where_it_is_too_long():
    label = "length_weighted(alpha=0.8, loo=True)"
    assert legend_text(label, 5.5, 7.0) == label
    assert legend_text(label, 2.0, 7.0).split("\n") == ["length_weighted", "(alpha=0.8, loo=True)"]
    assert max(map(len, legend_text(label, 1.2, 7.0).split("\n"))) * 0.058 + 0.4 <= 1.2


def test_the_legend_stands_below_the_axes_and_is_left_out_without_labels():
    figure, ax = plt.subplots()
    ax.plot([0, 1], [0, 1])
    legend_below(ax)
    assert figure.legends == []
    ax.plot([0, 1], [1, 0], label="rloo")
    legend_below(ax)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rloo"]
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0
