"""Legends below the axes."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from gradstats.plots.marks import ROW, SPACE, legend_below, legend_columns, legend_height, legend_text

mpl.use("Agg")

pytestmark = pytest.mark.usefixtures("narrowest")


def test_a_label_breaks_before_its_parameters_where_it_is_too_long():
    label = "length_weighted(alpha=0.8, loo=True)"
    assert legend_text(label, 5.5, 7.0) == label
    assert legend_text(label, 2.0, 7.0).split("\n") == ["length_weighted", "(alpha=0.8, loo=True)"]
    assert max(map(len, legend_text(label, 1.2, 7.0).split("\n"))) * 0.058 + 0.4 <= 1.2


@pytest.mark.parametrize(("labels", "columns"), [([], 1), (["a"] * 3, 3), (["a" * 20] * 9, 3), (["a" * 200], 1)])
def test_as_many_columns_as_fit_the_width(labels, columns):
    """At 7 points a character takes 0.058 in and a handle 0.4 in: 20 characters take 1.56 in of 5.5."""
    assert legend_columns(labels, 5.5, 7.0) == columns


def test_the_height_counts_rows_and_broken_lines_at_the_size_of_the_font():
    assert legend_height(["a" * 20] * 7, 5.5, 7.0) == pytest.approx(3 * ROW + SPACE)
    assert legend_height(["length_weighted(alpha=0.8, loo=True)"], 2.0, 7.0) == pytest.approx(2 * ROW + SPACE)
    assert legend_height(["a"], 5.5, 14.0) == pytest.approx(2 * (ROW + SPACE))


def test_the_legend_stands_below_the_axes_and_is_left_out_without_labels():
    figure, ax = plt.subplots()
    ax.plot([0, 1], [0, 1])
    legend_below(ax, 7.0)
    assert figure.legends == []
    ax.plot([0, 1], [1, 0], label="rloo")
    legend_below(ax, 7.0)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rloo"]
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0
