"""The words of terminal and report: explained once, in order, and complete for what a table shows."""

from gradstats.report.glossary import TERMS


def test_the_terms_are_in_order_and_whole_sentences():
    assert list(TERMS) == sorted(TERMS, key=str.lower)
    for term, meaning in TERMS.items():
        assert meaning.endswith("."), term
        assert meaning[0].isupper() or meaning[0] in "α‖χ", term
