"""Texts of models as they are shown."""

from __future__ import annotations

import pytest

from gradstats.report.prompts_on_page import shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nπ – 答え 👩‍🔬", "a\tb\nπ – 答え 👩‍🔬"),
        ("\x00\x1b[2J\r\x7f\x85", "␀␛[2J␍␡\\u0085"),
        ("1\u202e2\u2067\u2028", "1\\u202e2\\u2067\\u2028"),
        ("\ud800", "\\ud800"),
        ("<b>&", "<b>&"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text, shown):
    assert visible(text) == shown
    visible(text).encode()


def test_of_a_long_text_the_beginning_and_the_end_are_kept():
    assert shortened("a" * 9, 9) == ("a" * 9, 0)
    text, left_out = shortened("a" * 60 + "b" * 1000 + "c" * 30, 90)
    assert left_out == 1000
    assert text == "a" * 60 + "\n[… 1000 characters left out …]\n" + "c" * 30
