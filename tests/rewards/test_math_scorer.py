"""math-verify: what it finds equal, what it cannot parse, and what takes too long."""

from __future__ import annotations

import pytest
from math_verify.errors import TimeoutException

from gradstats.prompts import Problem
from gradstats.rewards import math_scorer
from gradstats.rewards.grading import ReferenceAnswerError, ScoringTimeoutError
from gradstats.rewards.registry import get_reward


def score(completion, answer):
    """The score in the process that scores of a run come from."""
    return get_reward("math")(completion, Problem("p", "?", answer))


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so we get \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("First 72, then finally the answer is 71.", "72", 0.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        (r"$x = -4$", "-4", 1.0),
    ],
)
def test_math_verify_compares_the_final_expression(completion, answer, expected):
    assert score(completion, answer) == expected


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi/2)}", r"\boxed{3}"),
        (r"\frac{14}{3}", "$14/3$", "14"),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", r"\boxed{\text{Angela}}"),
        (r"p - q", r"\boxed{p-q}", r"\boxed{q-p}"),
        (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\boxed{\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}}", "2/3"),
        (r"(-\infty, 2)", r"$(-\infty,2)$", "2"),
        ("5 apples", r"\boxed{5}", r"\boxed{6}"),
        ("2/3 cup", r"\boxed{\frac{2}{3}}", r"\boxed{2}"),
        ("70000", "that makes $70,000", "7000"),
    ],
)
def test_reference_answers_are_read_whole(answer, right, wrong):
    assert score(right, answer) == 1.0
    assert score(wrong, answer) == 0.0


def test_a_reference_answer_is_read_as_text_or_as_mathematics():
    assert math_scorer.math_score("5", "5 apples") == 1.0
    assert math_scorer.math_score(r"\boxed{(1, 2)}", r"\left(1, 2\right)") == 1.0
    math_scorer.check_reference("5 apples")
    with pytest.raises(
        ReferenceAnswerError, match=r"math-verify cannot parse the reference answer '\$': use another rew"
    ):
        math_scorer.check_reference("$")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"1": True}, 1.0),
        ({"1": TimeoutException(), "2": True}, 1.0),
        ({"1": ValueError(), "2": False}, 0.0),
        ({"1": TimeoutException(), "2": False}, None),
    ],
)
def test_a_comparison_that_times_out_counts_unless_another_is_equal(monkeypatch, outcomes, expected):
    def verify(gold, candidate, **options):
        assert gold == "gold"
        outcome = outcomes[candidate]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(math_scorer, "_parse_reference", lambda answer: ("gold",))
    monkeypatch.setattr(math_scorer, "_parse", lambda text: list(outcomes))
    monkeypatch.setattr(math_scorer, "verify", verify)
    if expected is None:
        with pytest.raises(ScoringTimeoutError, match="a comparison by math-verify took over 5 s"):
            math_scorer.math_score("text", "answer")
    else:
        assert math_scorer.math_score("text", "answer") == expected


def test_a_parse_that_times_out_is_counted_and_one_that_fails_finds_nothing(monkeypatch):
    def fails(error):
        def parse(text, **options):
            raise error

        return parse

    monkeypatch.setattr(math_scorer, "_parse_reference", lambda answer: (answer,))
    monkeypatch.setattr(math_scorer, "parse", fails(TimeoutException()))
    with pytest.raises(ScoringTimeoutError, match="a parse by math-verify took over 5 s"):
        math_scorer.math_score("text", "answer")
    monkeypatch.setattr(math_scorer, "parse", fails(RecursionError()))
    assert math_scorer.math_score("text", "answer") == 0.0
