"""Reference answers in each format."""

from __future__ import annotations

import pytest

from gradstats.prompts.problem import extract_reference


@pytest.mark.parametrize(
    ("text", "answer_format", "expected"),
    [
        (" 7 ", "text", "7"),
        ("", "text", None),
        ("so 3 and 1,204.50 dollars in all.", "last_number", "1204.50"),
        ("it is -5/8 of it", "last_number", "-5/8"),
        ("no number", "last_number", None),
        ("9 * 2 = <<9*2=18>>18\n#### 1,018", "hashes", "1018"),
        ("18", "hashes", None),
        ("so 12-5 makes 7, not 8-3", "last_number", "3"),
        ("(4)-3", "last_number", "3"),
        ("the numbers 1,2,3", "last_number", "3"),
        ("it is x=-3.", "last_number", "-3"),
        ("in 1,204,500 years", "last_number", "1204500"),
    ],
)
def test_reference_answers_are_found_in_each_format(text, answer_format, expected):
    assert extract_reference(text, answer_format) == expected
