"""How many prompts and completions a figure rests on."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from fixture_frames import CASES, variance
from legibility import assert_legible

from gradstats.plots.save import sample_size, sample_size_of, write_sample_size

pytestmark = pytest.mark.usefixtures("narrowest")


def test_prompts_of_different_sizes_state_totals():
    assert sample_size(96, 768) == "96 prompts × 8 completions"
    assert sample_size(96, 769) == "96 prompts, 769 completions"
    assert sample_size(96, 768, 8) == "96 prompts × 8 completions"
    assert sample_size(96, 768, 2) == "96 prompts × 8 completions, in groups of 2"


def test_a_comparison_states_what_it_measured():
    frame = variance("ordinary")
    assert sample_size_of(frame) == ""
    frame.attrs |= {"n_prompts": 48, "n_groups": 96}  # groups of 4
    assert sample_size_of(frame) == "48 prompts × 8 completions, in groups of 4"
    several = pd.concat([frame, frame.assign(group_size=8)])
    several.attrs = frame.attrs
    assert sample_size_of(several) == ""


def test_cells_of_a_sweep_state_their_range():
    frame = pd.DataFrame({"cell": ["a", "b"], "n_prompts": [64, 64], "n_completions": [512, 512]})
    assert sample_size_of(frame) == "64 prompts × 8 completions in each cell"
    frame["n_completions"] = [256, 512]
    assert sample_size_of(frame) == "64 prompts and 256–512 completions in each cell"


@pytest.mark.parametrize("shape", ["one row", "long names"])
@pytest.mark.parametrize("name", CASES)
def test_is_written_on_every_figure_beside_what_is_there(name, shape):
    plot, frame = CASES[name]
    plot(frame(shape))
    figure = plt.gcf()
    figure.canvas.draw()
    before = figure.axes[0].get_window_extent().height
    write_sample_size(figure, "1234 prompts × 16 completions, in groups of 4")
    figure.canvas.draw()
    assert_legible(figure)
    title = figure._suptitle.get_window_extent()
    assert title.x1 > 0.97 * figure.bbox.width
    assert title.y1 > 0.97 * figure.bbox.height - 6
    assert figure.axes[0].get_window_extent().height > 0.95 * before - 2  # room is added, not taken


def test_nothing_is_written_where_nothing_is_known():
    figure, _ = plt.subplots()
    write_sample_size(figure, "")
    assert figure.get_suptitle() == ""
    assert tuple(figure.get_size_inches()) == tuple(plt.rcParams["figure.figsize"])
