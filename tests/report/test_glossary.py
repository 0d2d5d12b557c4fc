"""The words of terminal and report: explained once, in order, and complete for what a table shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import program

from gradstats.report.glossary import TERMS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    module = program("docs/terms_page.py")
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.render(page) == page, "run: python docs/terms_page.py"
    with pytest.raises(ValueError, match="one pair of markers for the terms, found 0"):
        module.render("# No markers\n")


def test_the_terms_are_in_order_and_whole_sentences():
    assert list(TERMS) == sorted(TERMS, key=str.lower)
    for term, meaning in TERMS.items():
        assert meaning.endswith("."), term
        assert meaning[0].isupper() or meaning[0] in "α‖χ", term


def test_the_columns_of_the_variance_table_are_explained():
    words = " ".join(TERMS).lower()
    for column in ("tr cov", "ratio", "ratios of all rows", "relative noise", "cosine", "bias", "best set"):
        assert column in words
