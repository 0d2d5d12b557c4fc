"""The rewards by name, and those of the user: functions that score a completion against its problem."""

from __future__ import annotations

import functools
import inspect
import json
import numbers
from collections.abc import Callable, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TypedDict

from gradstats.config.options import read_label
from gradstats.prompts.embedded import extract_answer
from gradstats.prompts.problem import Problem
from gradstats.rewards.answers import final_answer
from gradstats.system.user_code import UserLabelError, import_function, look_in, search_folders
from gradstats.system.worker import PROCESS

_WHAT = "the reward"
#: Seconds for importing the module of a reward, which may load a library.
_IMPORT_SECONDS = 120.0
_CALL_SECONDS = 30.0


class Answer(TypedDict, total=False):
    """What a reward returned: a number, or the description of something else."""

    value: float
    other: str


def user_reward(name: str, parameters: Mapping[str, object]) -> Callable[[str, Problem], float]:
    """Return a reward that calls the user's function in the worker process.

    It raises IsolatedTimeoutError where a call takes longer than 30 s, IsolatedError where it raises or exits, and
    TypeError where it does not return a number.
    """
    folders = list(map(str, search_folders()))
    PROCESS.call("gradstats.rewards.registry:prepare", name, folders, list(parameters), seconds=_IMPORT_SECONDS)
    return functools.partial(_score, name, folders, dict(parameters))


def prepare(name: str, folders: list[str], parameters: list[str]) -> None:
    """Import the function, in the worker, and check the names of its parameters."""
    known = list(inspect.signature(_function(name, tuple(folders))).parameters.values())[2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        return
    names = [parameter.name for parameter in known]
    for parameter in parameters:
        if parameter not in names:
            listed = ", ".join(names) or "none"
            raise UserLabelError(f"the reward {name!r} has no parameter {parameter!r}; it has {listed}")


def score(
    name: str, folders: list[str], parameters: dict[str, object], completion: str, problem: dict[str, object]
) -> Answer:
    """Call the function, in the worker."""
    value = _function(name, tuple(folders))(completion, Problem(**problem), **parameters)  # pyright: ignore[reportArgumentType]
    return {"value": float(value)} if isinstance(value, numbers.Real) else {"other": repr(value)[:80]}


@functools.lru_cache(maxsize=64)
def _function(name: str, folders: tuple[str, ...]) -> Callable[..., object]:
    look_in([Path(folder) for folder in folders])
    return import_function(name, _WHAT)


def _score(name: str, folders: list[str], parameters: dict[str, object], completion: str, problem: Problem) -> float:
    fields = json.loads(json.dumps(asdict(problem), default=str))
    question = ("gradstats.rewards.registry:score", name, folders, parameters, completion, fields)
    answer: Answer = PROCESS.call(*question, seconds=_CALL_SECONDS)
    if "value" in answer:
        return answer["value"]
    raise TypeError(f"it returned {answer.get('other')}, which is not a number")


Reward = Callable[[str, Problem], float]


def _embedded_reward(completion: str, problem: Problem) -> float:
    """Return 1 when the answer marked by the embedded policy equals the reference answer exactly, else 0."""
    return float(extract_answer(completion) == problem.answer)


def _exact_reward(completion: str, problem: Problem) -> float:
    """Return 1 when the whole completion, stripped of white space, equals the reference answer, else 0."""
    return float(completion.strip() == problem.answer.strip())


def _math_reward(completion: str, problem: Problem) -> float:
    r"""Return 1 when math-verify finds the completion's final expression equal to the reference answer, else 0.

    The last ``\boxed{}`` counts. A completion that was cut inside it, or while it was thinking, has no answer. Numbers
    that differ are different, unless one is the other rounded to at least six decimals. A reference that math-verify
    does not read as it is written (:meth:`gradstats.rewards.grading.Grader.make` warns of it) equals the same text.
    """
    return PROCESS.call("gradstats.rewards.math_scorer:math_score", completion, problem.answer)


def _reasoning_gym_reward(completion: str, problem: Problem, threshold: float | None = 1.0) -> float:
    r"""Return 1 when the task's scorer gives the answer in a completion at least the threshold, else 0.

    The scorers give only partial credit to a correct answer inside a longer text, so the answer is extracted first:
    the text between the last ``<answer>`` tags, else the content of the last ``\boxed{}``, else the last number, else
    the stripped text.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}: give a credit in (0, 1], or None for the scorer's credit")
    if "task" not in problem.details:
        raise ValueError(f"problem {problem.prompt_id!r} is not a reasoning-gym problem: score it with another reward")
    identity = [problem.details[name] for name in ("task", "settings", "seed", "size", "index")]
    answer = final_answer(completion)
    credit = PROCESS.call("gradstats.prompts.task_entries:credit", *identity, problem.prompt, answer)
    return credit if threshold is None else float(credit >= threshold)


REWARDS: dict[str, Reward] = {
    "embedded": _embedded_reward,
    "exact": _exact_reward,
    "math": _math_reward,
    "reasoning_gym": _reasoning_gym_reward,
}


def get_reward(reward: str | Reward | None) -> Reward:
    """Find a reward function.

    Args:
        reward: a name in :data:`REWARDS` or a "module:function" of your own
            (see :mod:`gradstats.rewards.registry`), with parameters in brackets, as in
            "reasoning_gym(threshold=0.5)"; a function ``(completion_text, problem) -> float``, which is returned
            unchanged; or None, which uses the reward named by each problem.

    Returns:
        A function ``(completion_text, problem) -> float``.

    Example:
        >>> from gradstats.prompts import Problem
        >>> from gradstats.rewards import get_reward
        >>> problem = Problem(prompt_id="sum", prompt="What is 1 + 2?", answer="3")
        >>> exact = get_reward("exact")
        >>> exact(" 3 ", problem), exact("The answer is 3.", problem)
        (1.0, 0.0)
    """
    if reward is None:
        return lambda completion, problem: REWARDS[problem.reward](completion, problem)
    if callable(reward):
        return reward
    name, parameters = read_label(reward)
    if name in REWARDS:
        return _with_parameters(name, REWARDS[name], parameters)
    if ":" in name:
        return user_reward(name, parameters)
    near = get_close_matches(name, REWARDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"reward {reward!r} is not known; known are {', '.join(REWARDS)}, and module:function or "
        f"path/to/file.py:function{hint}"
    )


def _with_parameters(name: str, function: Reward, parameters: Mapping[str, object]) -> Reward:
    if not parameters:
        return function
    known = list(inspect.signature(function).parameters)[2:]
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"the reward {name!r} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
    return functools.partial(function, **parameters)
