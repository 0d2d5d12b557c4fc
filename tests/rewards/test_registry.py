"""Rewards of the user's own by name, in the worker process."""

import threading

import pytest

from gradstats.prompts import Problem
from gradstats.rewards.grading import Grader
from gradstats.rewards.registry import get_reward, user_reward


def score(reward, completion, answer):
    return get_reward(reward)(completion, Problem("p", "?", answer))


def test_math_rewards_work_off_the_main_thread():
    scores = []
    thread = threading.Thread(target=lambda: scores.append(score("math", "it is 12", "12")))
    thread.start()
    thread.join()
    assert scores == [1.0]


def test_exact_match_strips_white_space_only():
    assert score("exact", " yes\n", "yes") == 1.0
    assert score("exact", "Yes", "yes") == 0.0


def test_your_own_function_by_object_or_by_name():
    assert get_reward(lambda completion, problem: 0.25)("", Problem("p", "?", "")) == 0.25
    with pytest.raises(ImportError, match="the reward 'operator:eq' belongs to Python's standard library"):
        get_reward("operator:eq")
    with pytest.raises(ImportError, match="the reward 'no_such_module:f' cannot be imported"):
        get_reward("no_such_module:f")
    with pytest.raises(ValueError, match="reward 'maths' is not known; .* did you mean 'math'"):
        get_reward("maths")


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


@pytest.fixture
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


def leaving(completion, problem):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("reward", "timeouts", "reason"),
    [
        ("leaves", 0, "SystemExit: 3"),
        ("raises", 0, "KeyError: 'x'"),
        ("says", 0, "it returned 'good', which is not a number"),
        ("hangs", 1, None),
        (leaving, 0, "SystemExit: 3"),
    ],
)
def test_what_it_raises_costs_one_completion_and_exits_do_not_end_the_program(
    module, monkeypatch, reward, timeouts, reason
):
    monkeypatch.setattr("gradstats.rewards.registry._CALL_SECONDS", 1.0)
    totals, tally = Grader.make(f"{module}:{reward}" if isinstance(reward, str) else reward, [PROBLEM]).grade(
        ["x"], [PROBLEM]
    )
    (counts,) = tally["rewards"].values()
    assert (totals, counts["timeouts"], counts["failures"]) == ([0.0], timeouts, 1 - timeouts)
    assert reason is None or reason in counts["first_failure"]
