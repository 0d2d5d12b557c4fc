"""Scoring completions."""

from __future__ import annotations

import threading

import pytest

from gradstats.prompts import Problem
from gradstats.rewards.registry import get_reward


def score(reward, completion, answer):
    return get_reward(reward)(completion, Problem("p", "?", answer))


def test_math_rewards_work_off_the_main_thread():
    scores = []
    thread = threading.Thread(target=lambda: scores.append(score("math", "it is 12", "12")))
    thread.start()
    thread.join()
    assert scores == [1.0]


def test_an_unreadable_reference_answer_is_named():
    with pytest.raises(ValueError, match="math-verify cannot parse the reference answer ' '"):
        score("math", "12", " ")


def test_exact_match_strips_white_space_only():
    assert score("exact", " yes\n", "yes") == 1.0
    assert score("exact", "Yes", "yes") == 0.0


def test_the_problems_own_reward_is_the_default():
    reward = get_reward(None)
    assert reward("abc", Problem("p", "?", "abc", reward="exact")) == 1.0
    assert reward("it is 3", Problem("p", "?", "3", reward="math")) == 1.0


def test_your_own_function_by_object_or_by_name():
    assert get_reward(lambda completion, problem: 0.25)("", Problem("p", "?", "")) == 0.25
    with pytest.raises(ImportError, match="the reward 'operator:eq' belongs to Python's standard library"):
        get_reward("operator:eq")
    with pytest.raises(ImportError, match="the reward 'no_such_module:f' cannot be imported"):
        get_reward("no_such_module:f")
    with pytest.raises(ValueError, match="reward 'maths' is not known; .* did you mean 'math'"):
        get_reward("maths")
