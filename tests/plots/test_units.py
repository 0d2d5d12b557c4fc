"""Quantities that have a unit are drawn for estimators of one unit, and the others are named."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from fixture_frames import LONG, group_sizes, prompt_parts, variance

from gradstats import plots
from gradstats.estimators.display_names import in_words
from gradstats.plots import estimator_unit, style
from gradstats.plots.names import rows_of_one_unit
from gradstats.stats.variance.quantities import QUANTITIES

mpl.use("Agg")

RECIPE = "grpo[group_mean · group_std · token_clip · sequence_mean]"


@pytest.fixture(autouse=True)
def paper_style():
    with mpl.rc_context(style("icml", "half")):
        yield
    plt.close("all")


def rows(ax):
    return [label.get_text().replace("\n", "") for label in ax.get_yticklabels()]


def test_units_come_from_the_registry():
    assert estimator_unit("rloo") == estimator_unit("length_weighted(alpha=0.8)") == "sequence_sum"
    assert estimator_unit("grpo") == "sequence_sum / group_std"
    assert estimator_unit(RECIPE) == "sequence_mean / group_std"
    assert estimator_unit("opo[token_mean(loo=True)]") == "sequence_sum"
    assert estimator_unit("nothing is called so") == "sequence_sum"


@pytest.mark.parametrize("value", ["ratio", "trace_cov", "signal_sq"])
def test_rows_in_another_unit_are_left_out_with_a_sentence(value):
    frame = variance("ordinary")
    frame.loc[1, "estimator"] = RECIPE
    kept = [in_words(name) for name in frame["estimator"] if name not in (RECIPE, "grpo")]
    ax = plots.plot_variance(frame, value=value)
    assert rows(ax) == kept
    sentence = " ".join(ax.get_title(loc="right").split())
    assert sentence == f"Left out, in another unit: {RECIPE}; GRPO advantage."
    assert len(rows(plots.plot_variance(frame, value="noise_to_signal"))) == len(frame)


def test_every_row_is_kept_where_units_agree():
    frame = variance("ordinary")
    frame = frame[frame["estimator"] != "grpo"]
    ax = plots.plot_variance(frame, value="ratio")
    assert rows(ax) == list(map(in_words, frame["estimator"]))
    assert ax.get_title(loc="right") == ""


def test_the_reference_decides_which_unit_is_drawn():
    frame = variance("ordinary")
    frame.attrs["reference"] = "grpo"
    assert rows(plots.plot_variance(frame, value="ratio")) == ["GRPO advantage"]
    del frame.attrs["reference"]
    assert "GRPO advantage" not in rows(plots.plot_variance(frame, value="ratio"))


def test_a_recorded_unit_goes_before_the_label():
    frame = variance("ordinary").assign(unit="my unit")
    kept, sentence = rows_of_one_unit(frame, [QUANTITIES["ratio"]])
    assert len(kept) == len(frame)
    assert sentence == ""
    frame.loc[2, "unit"] = "sequence_sum"
    _, sentence = rows_of_one_unit(frame, [QUANTITIES["ratio"]])
    assert sentence == f"Left out, in another unit: {in_words(frame['estimator'][2])}."


def test_panels_group_sizes_and_components_leave_the_same_rows_out():
    axes = plots.plot_variance_panels(variance("ordinary"), values=("ratio", "cosine"))
    assert "GRPO advantage" not in rows(axes[0])
    assert axes[-1].get_title(loc="right") == "Left out, in another unit: GRPO advantage."
    ax = plots.plot_group_size(group_sizes("ordinary"))
    assert "GRPO advantage" not in [text.get_text() for text in ax.get_figure().legends[0].get_texts()]
    assert ax.get_title(loc="right") == "Left out, in another unit: GRPO advantage."
    ax = plots.plot_prompt_parts(prompt_parts("ordinary"))
    assert "GRPO advantage" not in rows(ax)
    assert ax.get_title(loc="right") == "Left out, in another unit: GRPO advantage."


@pytest.mark.parametrize("column", ["half", "full"])
def test_a_long_sentence_fits_the_page(column):
    frame = variance("ordinary").assign(unit="sequence_sum")
    others = pd.concat([frame.assign(estimator=f"{LONG}{at}", unit="another") for at in range(2)])
    frame = pd.concat([frame, others], ignore_index=True)
    with mpl.rc_context(style("neurips", column)):
        ax = plots.plot_variance(frame, value="ratio")
        figure = ax.get_figure()
        figure.canvas.draw()
    title = ax.get_title(loc="right")
    assert "\n" in title
    box = next(text.get_window_extent() for text in ax.findobj(mpl.text.Text) if text.get_text() == title)
    assert box.x0 >= figure.bbox.x0
    assert box.y1 <= figure.bbox.y1
    heights = [label.get_window_extent().y1 for label in ax.get_yticklabels()]
    assert max(heights) <= box.y0 + 1
    for upper, lower in itertools.pairwise(ax.get_yticklabels()):
        assert lower.get_window_extent().y1 <= upper.get_window_extent().y0 + 1.0
