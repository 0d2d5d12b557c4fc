"""Quantities that have a unit are drawn for estimators of one unit, and the others are named."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest
from fixture_frames import LONG, group_sizes, prompt_parts, variance
from legibility import assert_legible

from gradstats import estimators, plots
from gradstats.estimators.display_names import in_words
from gradstats.plots import estimator_appearance, estimator_unit, style
from gradstats.plots.names import (
    KNOWN,
    in_mathematics,
    longest_title,
    names_in,
    reference_name,
    rows_of_one_unit,
    variants,
    wrapped,
    wrapped_to_axis,
)
from gradstats.stats.variance.quantities import QUANTITIES


def test_colour_and_marker_of_a_name_are_fixed_for_good_and_its_own():
    known = {estimator_appearance(name) for name in KNOWN}
    assert len(known) == len(KNOWN)
    assert set(estimators.names()) <= set(KNOWN)
    assert estimator_appearance("length_weighted(alpha=0.8, loo=True)") == estimator_appearance("length_weighted")
    assert not known & {estimator_appearance(name) for name in ("mine", "yours", "control_variate", "b")}
    for name, expected in (("rloo", [0.004, 0.451, 0.698]), ("something_else", [0.871, 0.561, 0.02])):
        color, marker = estimator_appearance(name)
        assert ([round(channel, 3) for channel in color], marker) == (expected, "o")


def test_estimators_of_one_name_differ_without_colour():
    labels = ["gae", "rloo", "gae(lam=0.95)", "token_mean", "gae(lam=0.5)", "gae(lam=0.1)"]
    found = variants(labels)
    assert [one.linestyle for one in found[:4]] == ["-", "-", "-.", "--"]
    assert [one.fillstyle for one in found[:4]] == ["full", "full", "left", "bottom"]
    of_gae = [one for one, label in zip(found, labels, strict=True) if label.startswith("gae")]
    assert len({one.linestyle for one in of_gae}) == len({one.fillstyle for one in of_gae}) == 4


def test_names_are_words_or_what_the_user_says():
    frame = pd.DataFrame({"estimator": ["gae", "token_mean(loo=True)"]})
    frame.attrs |= {"reference": "rloo", "labels": {"gae": "ours"}}
    assert names_in(frame) == {"gae": "ours", "token_mean(loo=True)": "token mean, leave-one-out", "rloo": "RLOO"}
    assert reference_name(frame) == "RLOO"
    assert reference_name(frame, "gae") == "ours"
    assert reference_name(pd.DataFrame({"estimator": ["rloo"]})) == "the reference"


def test_greek_letters_are_mathematics_outside_of_formulas():
    assert in_mathematics("α = 0.8, $α$, $x$ ε") == r"$\alpha$ = 0.8, $α$, $x$ $\varepsilon$"


def test_a_value_stays_with_its_parameter_and_a_formula_whole():
    assert wrapped("length-weighted, α = 0.8, leave-one-out", 20) == ["length-weighted,", "α = 0.8,", "leave-one-out"]
    assert wrapped("ours $x = y + z$", 8) == ["ours", "$x = y + z$"]
    text = wrapped_to_axis("variance relative to norm-weighted, leave-one-out,\nat matched signal")
    assert text == "variance relative to\nnorm-weighted, leave-one-out,\nat matched signal"
    assert [longest_title(count) for count in (1, 2, 3)] == [32, 16, 10]  # of 2.75 inches


RECIPE = "grpo[group_mean · group_std · token_clip · sequence_mean]"


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


def test_the_reference_decides_which_unit_is_drawn_and_a_recorded_unit_goes_before_the_label():
    frame = variance("ordinary")
    del frame.attrs["reference"]
    assert "GRPO advantage" not in rows(plots.plot_variance(frame, value="ratio"))
    frame.attrs["reference"] = "grpo"
    assert rows(plots.plot_variance(frame, value="ratio")) == ["GRPO advantage"]
    frame = variance("ordinary").assign(unit="my unit")
    kept, sentence = rows_of_one_unit(frame, [QUANTITIES["ratio"]])
    assert (len(kept), sentence) == (len(frame), "")
    frame.loc[2, "unit"] = "sequence_sum"
    _, sentence = rows_of_one_unit(frame, [QUANTITIES["ratio"]])
    assert sentence == f"Left out, in another unit: {in_words(frame['estimator'][2])}."


def test_panels_group_sizes_and_components_leave_the_same_rows_out():
    axes = plots.plot_variance_panels(variance("ordinary"), values=("ratio", "cosine"))
    parts = plots.plot_prompt_parts(prompt_parts("ordinary"))
    sizes = plots.plot_group_size(group_sizes("ordinary"), value="trace_cov")
    drawn = [rows(axes[0]), rows(parts), [text.get_text() for text in sizes.get_figure().legends[0].get_texts()]]
    assert not any("GRPO advantage" in names for names in drawn)
    for ax in (axes[-1], parts, sizes):
        assert ax.get_title(loc="right") == "Left out, in another unit: GRPO advantage."


@pytest.mark.parametrize("column", ["half", "full"])
def test_a_long_sentence_fits_the_page(column):
    frame = variance("ordinary").assign(unit="sequence_sum")
    others = [frame.assign(estimator=f"{LONG}{at}", unit="another") for at in range(2)]
    with mpl.rc_context(style("neurips", column)):
        ax = plots.plot_variance(pd.concat([frame, *others], ignore_index=True), value="ratio")
        ax.get_figure().canvas.draw()
        assert_legible(ax.get_figure())
    assert "\n" in ax.get_title(loc="right")
