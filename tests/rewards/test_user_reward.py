"""Rewards of the user's own by name, in the worker process."""

from __future__ import annotations

import pytest

from gradstats.prompts import Problem
from gradstats.rewards.grading import Grader
from gradstats.rewards.registry import user_reward
from gradstats.system.worker import IsolatedError

TEXT = """
import sys
import numpy as np
def score(completion, problem, scale=1.0):
    return np.float32(scale * (completion == problem.answer) + len(problem.details))
def leaves(completion, problem):
    sys.exit(3)
def raises(completion, problem):
    raise KeyError(completion)
def says(completion, problem):
    return "good"
def hangs(completion, problem):
    while True: pass
"""
PROBLEM = Problem("p", "?", "3", details={"a": 1})


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch, request):
    """Each test has a module of its own: the worker keeps what it has imported."""
    name = f"ur_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return name


def test_its_value_is_the_functions(module):
    assert user_reward(f"{module}:score", {})("3", PROBLEM) == 2.0
    assert user_reward(f"{module}:score", {"scale": 0.5})("3", PROBLEM) == 1.5


def test_unknown_parameters_and_modules_are_refused_before_the_first_call(module):
    with pytest.raises(ValueError, match=r"has no parameter 'size'; it has scale"):
        user_reward(f"{module}:score", {"size": 1})
    with pytest.raises(ImportError, match="there is no module 'ur_missing'"):
        user_reward("ur_missing:score", {})


def test_what_it_raises_costs_one_completion_and_exits_do_not_end_the_program(module):
    for name, reason in (("leaves", "SystemExit: 3"), ("raises", "KeyError: 'x'")):
        _, tally = Grader.make(f"{module}:{name}", [PROBLEM]).grade(["x"], [PROBLEM])
        assert tally["rewards"][f"{module}:{name}"]["first_failure"] == reason
    with pytest.raises(IsolatedError, match="SystemExit: 3"):
        user_reward(f"{module}:leaves", {})("x", PROBLEM)


def test_what_is_not_a_number_is_counted(module):
    totals, tally = Grader.make(f"{module}:says", [PROBLEM]).grade(["x"], [PROBLEM])
    assert totals == [0.0]
    assert "it returned 'good', which is not a number" in tally["rewards"][f"{module}:says"]["first_failure"]


def test_one_that_hangs_is_stopped(module, monkeypatch):
    monkeypatch.setattr("gradstats.rewards.registry._CALL_SECONDS", 1.0)
    _, tally = Grader.make(f"{module}:hangs", [PROBLEM]).grade(["x"], [PROBLEM])
    assert tally["rewards"][f"{module}:hangs"]["timeouts"] == 1


def test_a_function_object_that_exits_costs_one_completion():
    def leaves(completion, problem):
        raise SystemExit(3)

    totals, tally = Grader.make(leaves, [PROBLEM]).grade(["x"], [PROBLEM])
    assert (totals, tally["rewards"]["leaves"]["failures"]) == ([0.0], 1)
