"""Every plot function, on every shape of frame, at the narrowest width: nothing is clipped, nothing overlaps."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from fixture_frames import CASES, SHAPES
from legibility import assert_legible
from matplotlib.text import Text

from gradstats.plots.marks import NO_INTERVAL
from gradstats.plots.save import write_sample_size

# What shows numbers that do not depend on the metric.
WITHOUT_METRIC = ("proxy", "length_reward", "batch_size")
# Those of batch sizes leave out what has no interval; the others have none.
WITHOUT_INTERVALS = ("token_energy", "proxy", "length_reward", "block_heatmap", "batch_size")


def drawn():
    """The figure that was drawn last, with its canvas."""
    figure = plt.gcf()
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_clipped_and_no_texts_overlap(name, shape):
    plot, frame = CASES[name]
    plot(frame(shape))
    figure = drawn()
    assert figure.get_size_inches()[0] == 2.75
    assert_legible(figure)
    assert not any("Adam's metric" in text.get_text() for text in figure.findobj(Text))
    if shape in ("ordinary", "nan intervals") and name not in WITHOUT_INTERVALS:
        lines = [line for ax in figure.axes for line in ax.lines]
        crosses = [line for line in lines if line.get_marker() == "x" and len(line.get_xdata())]
        named = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert bool(crosses) is (NO_INTERVAL in named) is (shape == "nan intervals")
    if shape in ("one row", "long names"):
        assert_size_is_written_beside_what_is_there(figure)


def assert_size_is_written_beside_what_is_there(figure):
    before = figure.axes[0].get_window_extent().height
    write_sample_size(figure, "1234 prompts × 16 completions, in groups of 4")
    figure.canvas.draw()
    assert_legible(figure)
    title = figure._suptitle.get_window_extent()
    assert title.x1 > 0.97 * figure.bbox.width
    assert title.y1 > 0.97 * figure.bbox.height - 6
    assert figure.axes[0].get_window_extent().height > 0.95 * before - 2  # room is added, not taken


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_METRIC])
def test_a_metric_that_is_not_euclidean_is_stated(name):
    plot, frame = CASES[name]
    table = frame("ordinary")
    table.attrs["metric"] = "adam(eps=1e-08, power=0.5, moments=1a)"
    plot(table)
    figure = drawn()
    assert any("Adam's metric" in text.get_text() for text in figure.findobj(Text))
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
