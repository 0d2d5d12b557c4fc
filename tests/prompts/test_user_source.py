"""Problems from a function of the user's own."""

from __future__ import annotations

import sys

import pytest

from gradstats.prompts import Problem, load_prompts

TEXT = """
from gradstats.prompts import Problem
def problems(n, rng, start=0):
    rows = [{"prompt_id": str(k), "prompt": f"{k} + {rng}?", "answer": str(k + rng)} for k in range(start, start + n)]
    return [Problem(**rows[0]), *rows[1:]]
def nothing(n, rng): return 3
def wrong(n, rng): return [{"prompt": "?"}]
def leaves(n, rng): raise SystemExit("no")
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "user_problems_of_test.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("user_problems_of_test", None)


def test_problems_or_mappings():
    found = load_prompts("user_problems_of_test:problems", 2, rng=5, start=1)
    assert found == [Problem("1", "1 + 5?", "6"), Problem("2", "2 + 5?", "7")]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "returned a int: return a list"),
        (
            "wrong",
            r"returned \{'prompt': '\?'\}: return gradstats.prompts.Problem, or mappings with the texts prompt_id",
        ),
        ("leaves", "failed: SystemExit: no"),
        ("problems(2)", "not of the form module:function"),
    ],
)
def test_other_returns_are_refused(function, message):
    with pytest.raises(ValueError, match=message):
        load_prompts(f"user_problems_of_test:{function}", 1)
