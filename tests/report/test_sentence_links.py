"""Sentences of the report lead to the figure that shows what they say."""

from __future__ import annotations

import re

import pytest

from gradstats import data
from gradstats.report.figures import FIGURES
from gradstats.report.page import _TOPICS, FIGURE_WORDS, linked, of_section
from gradstats.stats import alpha_report

NAMES = [figure.name for figure in FIGURES]


def figure_of(sentence, drawn=NAMES):
    return linked([sentence], drawn)[0]["figures"]


def test_every_figure_named_is_one_of_a_run():
    assert set(FIGURE_WORDS) <= set(NAMES)
    assert {figure for _, figure in _TOPICS} <= set(FIGURE_WORDS)


def test_sentences_of_a_fit_lead_to_its_figure():
    points = data.load("gloeckle2026")
    first, *rest = alpha_report(lengths=points.length, sq_norms=points.sq_norm).sentences()
    assert rest
    assert all(figure_of(sentence) == ["length_scaling"] for sentence in rest)
    assert figure_of(first) == ["token_correlation"]
    assert figure_of(first, ["length_scaling"]) == []


@pytest.mark.parametrize(
    ("sentence", "figure"),
    [
        ("the scale of χ² is 2", ["ratios"]),
        ("matched_ratio uses the exactly known scale of E[ĝ]", ["variance"]),
        ("cosine without a value, and matched_ratio by its lower end", ["variance_bias"]),
        ("an iteration of 4 operations", []),
    ],
)
def test_the_first_topic_that_was_drawn_decides(sentence, figure):
    assert figure_of(sentence) == figure


def test_a_sentence_is_kept_as_it_is():
    assert linked(["<b>One</b> power law"], [])[0] == {"text": "<b>One</b> power law", "figures": []}
    assert of_section(("variance", "none"), ["variance"]) == ["variance"]
    assert not any(re.search(r"[<>&]", words) for words in FIGURE_WORDS.values())
