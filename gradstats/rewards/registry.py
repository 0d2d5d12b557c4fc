"""The rewards by name: how a completion is scored against its problem's answer."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from gradstats.config.labels import read_label
from gradstats.prompts.embedded import extract_answer
from gradstats.prompts.problem import Problem
from gradstats.rewards.final_answer import final_answer
from gradstats.system.worker import PROCESS

Reward = Callable[[str, Problem], float]


def embedded_reward(completion: str, problem: Problem) -> float:
    """1 when the answer that the embedded policy marked equals the reference exactly, else 0."""
    return float(extract_answer(completion) == problem.answer)


def exact_reward(completion: str, problem: Problem) -> float:
    """1 when the whole completion, stripped of white space, equals the reference answer, else 0."""
    return float(completion.strip() == problem.answer.strip())


def math_reward(completion: str, problem: Problem) -> float:
    """1 when math-verify finds the completion's final expression equal to the reference answer, else 0.

    Raises:
        ScoringTimeoutError, IsolatedTimeoutError: when math-verify ran into its time limits, or hung and was stopped.
        ReferenceAnswerError: when it cannot parse the reference answer itself (a ValueError).
    """
    return PROCESS.call("gradstats.rewards.math_scorer:math_score", completion, problem.answer)


def reasoning_gym_reward(completion: str, problem: Problem, threshold: float | None = 1.0) -> float:
    r"""1 when reasoning-gym's own scorer gives the answer in the completion the threshold, 1.0 unless told, else 0.

    The scorers give partial credit for the right answer inside a longer text, so the answer is extracted first:
    the text between the last ``<answer>`` tags where there are any, else what stands in the last ``\boxed{}``, else
    the last number, else the stripped text.

    Args:
        completion: the completion's text.
        problem: a problem of a reasoning-gym task.
        threshold: credit from which on an answer counts as right; None gives the scorer's credit itself.

    Raises:
        ValueError: for a threshold outside (0, 1], or a problem of another source.
        IsolatedTimeoutError: when the scorer hung and was stopped.
        IsolatedError: when the scorer raised.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}: give a credit in (0, 1], or None for the scorer's credit itself")
    if "task" not in problem.details:
        raise ValueError(f"problem {problem.prompt_id!r} is no reasoning-gym problem: score it with another reward")
    made = [problem.details[name] for name in ("task", "settings", "seed", "size", "index")]
    answer = final_answer(completion)
    credit = PROCESS.call("gradstats.prompts.task_entries:credit", *made, problem.prompt, answer)
    return credit if threshold is None else float(credit >= threshold)


REWARDS: dict[str, Reward] = {
    "embedded": embedded_reward,
    "exact": exact_reward,
    "math": math_reward,
    "reasoning_gym": reasoning_gym_reward,
}


def get_reward(reward: str | Reward | None) -> Reward:
    """The reward function of a name.

    Args:
        reward: a name of :data:`REWARDS` or "module:function" of your own, with parameters in brackets where it has
            any, as in "reasoning_gym(threshold=0.5)"; a function ``(completion_text, problem) -> float``; or None,
            which takes each problem's own.

    Raises:
        ValueError: for an unknown name (the nearest is suggested), or an unknown parameter.
        ImportError: when "module:function" cannot be imported.
    """
    if reward is None:
        return lambda completion, problem: REWARDS[problem.reward](completion, problem)
    if callable(reward):
        return reward
    name, parameters = read_label(reward)
    if name in REWARDS:
        return _with_parameters(name, REWARDS[name], parameters)
    module_name, colon, function_name = name.partition(":")
    if colon:
        try:
            function = getattr(importlib.import_module(module_name), function_name)
        except (ImportError, AttributeError) as error:
            raise ImportError(f"the reward {reward!r} cannot be imported: {error}") from error
        return _with_parameters(name, function, parameters)
    near = get_close_matches(name, REWARDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"reward {reward!r} is not known; known are {', '.join(REWARDS)} and module:function{hint}")


def _with_parameters(name: str, function: Reward, parameters: dict[str, Any]) -> Reward:
    if not parameters:
        return function
    known = list(inspect.signature(function).parameters)[2:]
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"the reward {name!r} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
    return functools.partial(function, **parameters)
