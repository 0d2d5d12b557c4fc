"""Names and mathematics in the texts of a figure."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest

from gradstats.plots.names import in_mathematics, longest_title, names_in, reference_name, wrapped, wrapped_to_axis


def test_names_are_words_or_what_the_user_says():
    frame = pd.DataFrame({"estimator": ["gae", "token_mean(loo=True)"]})
    frame.attrs |= {"reference": "rloo", "labels": {"gae": "ours"}}
    assert names_in(frame) == {"gae": "ours", "token_mean(loo=True)": "token mean, leave-one-out", "rloo": "RLOO"}
    assert reference_name(frame) == "RLOO"
    assert reference_name(frame, "gae") == "ours"
    assert reference_name(pd.DataFrame({"estimator": ["rloo"]})) == "the reference"


def test_greek_letters_are_mathematics_outside_of_formulas():
    assert in_mathematics("α = 0.8, $α$, $x$ ε") == r"$\alpha$ = 0.8, $α$, $x$ $\varepsilon$"
    assert in_mathematics("ΔL") == r"$\Delta$L"


def test_a_value_stays_with_its_parameter_and_a_formula_whole():
    assert wrapped("length-weighted, α = 0.8, leave-one-out", 20) == ["length-weighted,", "α = 0.8,", "leave-one-out"]
    assert wrapped("ours $x = y + z$", 8) == ["ours", "$x = y + z$"]


@pytest.mark.usefixtures("narrowest")
def test_long_axis_labels_are_broken():
    text = wrapped_to_axis("variance relative to norm-weighted, leave-one-out,\nat matched signal")
    assert text == "variance relative to\nnorm-weighted, leave-one-out,\nat matched signal"


@pytest.mark.usefixtures("narrowest")
def test_titles_of_more_panels_are_shorter_and_those_in_a_wider_font():
    assert [longest_title(count) for count in (1, 2, 3)] == [32, 16, 10]  # of 2.75 inches
    with mpl.rc_context({"font.family": ["DejaVu Sans"]}):
        assert longest_title(1) == 26
