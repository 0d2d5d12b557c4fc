"""Texts for LaTeX: line breaks and estimated widths."""

from __future__ import annotations

import pytest

from gradstats.report.latex import breakable, formula_width, latex_escape, text_width, unbreakable, wrapped


def test_what_latex_would_read_as_its_own_is_escaped():
    assert latex_escape("a_b & 5% χ²") == r"a\_b \& 5\% $\chi$$^2$"


def test_long_labels_may_break_after_punctuation_and_short_words_may_not():
    assert unbreakable("length_weighted(alpha=0.8, loo=True)") == [
        "length_", "weighted(", "alpha=", "0.8,", "loo=True)",
    ]  # fmt: skip
    assert breakable("(96 groups) a_b") == r"(96 groups) a\_b"
    assert breakable("length_weighted(alpha=0.8)").replace(r"\allowbreak{}", "") == r"length\_weighted(alpha=0.8)"
    assert breakable("length_weighted(alpha=0.8)").count(r"\allowbreak{}") == 3


def test_a_value_stays_beside_its_parameter_and_a_formula_whole():
    assert breakable("length-weighted, α = 0.8, own") == r"length-weighted, $\alpha$~=~0.8, own"
    assert unbreakable("by $x_1 + y_{long}$, n = 30") == ["by", "$x_1 + y_{long}$,", "n\u00a0=\u00a030"]
    assert breakable("50% of $x_1 + y_{long}$") == r"50\% of $x_1 + y_{long}$"


@pytest.mark.parametrize("text", [r"$\input{secrets}$", "$\\write18{ls}$", "$x", "costs $5_{"])
def test_what_figures_do_not_set_as_a_formula_is_escaped(text):
    assert latex_escape(text).count(r"\$") == text.count("$")
    assert "\\input" not in latex_escape(text)


def test_headings_are_wrapped_to_a_width():
    assert wrapped("all matched ratios", text_width("all matched")) == ["all matched", "ratios"]
    assert wrapped("cosine", 0.1) == ["cosine"]
    assert wrapped("", 5.0) == [""]


@pytest.mark.parametrize(
    ("cell", "points"),
    # Measured with \settowidth at 8 pt in Computer Modern.
    [
        ("$1.30^{+0.29}_{-0.24}$", 34.7),
        ("$0.79_{\\pm 0.31}$", 34.7),
        ("$> 0.928$", 28.3),
        ("$[0.20, 1.00]$", 38.7),
        ("$1.81_{\\pm 0.16} \\cdot 10^{-4}$", 59.3),
        ("$388$", 12.75),
    ],
)
def test_widths_are_estimated_from_above_and_not_by_much(cell, points):
    assert points <= 8.0 * formula_width(cell) <= 1.2 * points
