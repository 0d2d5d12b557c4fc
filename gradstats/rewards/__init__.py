"""How a completion is scored against its problem's answer."""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from gradstats.prompts.embedded import extract_answer
from gradstats.prompts.problem import Problem
from gradstats.prompts.reasoning_tasks import task_scorer

Reward = Callable[[str, Problem], float]

_PARSING_SECONDS = 5


def embedded_reward(completion: str, problem: Problem) -> float:
    """1 when the answer that the embedded policy marked equals the reference exactly, else 0."""
    return float(extract_answer(completion) == problem.answer)


def exact_reward(completion: str, problem: Problem) -> float:
    """1 when the whole completion, stripped of white space, equals the reference answer, else 0."""
    return float(completion.strip() == problem.answer.strip())


def math_reward(completion: str, problem: Problem) -> float:
    """1 when math-verify finds the completion's final expression equal to the reference answer, else 0.

    Raises:
        ValueError: when math-verify cannot parse the reference answer itself.
    """
    # math-verify is imported late: it pulls in sympy, which a run with other rewards does not need.
    from math_verify import parse, verify

    # Its timeouts are built on signals, which exist in the main thread only.
    seconds: Any = _PARSING_SECONDS if threading.current_thread() is threading.main_thread() else None
    gold = _parse_gold(problem.answer, seconds)
    answer = parse(completion, parsing_timeout=seconds)
    return float(verify(gold, answer, timeout_seconds=seconds))


def reasoning_gym_reward(completion: str, problem: Problem) -> float:
    r"""1 when reasoning-gym's own scorer gives full marks to the answer found in the completion, else 0.

    The scorers give partial credit for the right answer inside a longer text, so the answer is extracted first:
    the text between the last ``<answer>`` tags where there are any, else the last ``\boxed{}``, else the last
    number, else the stripped text.
    """
    details = problem.details
    data = _cached_scorer(details["task"], tuple(sorted(details["settings"].items())), details["seed"], details["size"])
    return float(data.score_answer(answer=_final_answer(completion), entry=data[details["index"]]) >= 1.0)


REWARDS: dict[str, Reward] = {
    "embedded": embedded_reward,
    "exact": exact_reward,
    "math": math_reward,
    "reasoning_gym": reasoning_gym_reward,
}


def get_reward(reward: str | Reward | None) -> Reward:
    """The reward function of a name.

    Args:
        reward: a name of :data:`REWARDS`; "module:function" of your own; a function
            ``(completion_text, problem) -> float``; or None, which takes each problem's own.

    Raises:
        ValueError: for an unknown name (the nearest is suggested).
        ImportError: when "module:function" cannot be imported.
    """
    if reward is None:
        return lambda completion, problem: REWARDS[problem.reward](completion, problem)
    if callable(reward):
        return reward
    if reward in REWARDS:
        return REWARDS[reward]
    module_name, colon, function_name = reward.partition(":")
    if colon:
        try:
            return getattr(importlib.import_module(module_name), function_name)
        except (ImportError, AttributeError) as error:
            raise ImportError(f"the reward {reward!r} cannot be imported: {error}") from error
    near = get_close_matches(reward, REWARDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"reward {reward!r} is not known; known are {', '.join(REWARDS)} and module:function{hint}")


@functools.lru_cache(maxsize=4096)
def _parse_gold(answer: str, seconds: Any) -> list[Any]:
    from math_verify import parse

    gold = parse(answer, parsing_timeout=seconds) or parse(f"${answer}$", parsing_timeout=seconds)
    if not gold:
        raise ValueError(f"math-verify cannot parse the reference answer {answer!r}: use another reward, or mend it")
    return gold


@functools.lru_cache(maxsize=64)
def _cached_scorer(task: str, settings: tuple[tuple[str, Any], ...], seed: int, size: int) -> Any:
    return task_scorer(task, dict(settings), seed, size)


_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def _final_answer(completion: str) -> str:
    for pattern, group in ((_TAGGED, 1), (_BOXED, 1), (_NUMBER, 0)):
        found = list(pattern.finditer(completion))
        if found:
            return found[-1].group(group).strip().replace(",", "")
    return completion.strip()
