"""User-defined rewards by name: "module:function" runs in the worker process, with limits on time and memory.

A function that is passed as an object in Python runs in this process, without limits.
"""

from __future__ import annotations

import functools
import inspect
import json
import numbers
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from gradstats.prompts.problem import Problem
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

    Args:
        name: ``"module:function"``, see :mod:`gradstats.system.user_code` for where modules are searched for.
        parameters: further arguments of the function, by name.

    Returns:
        A function ``(completion_text, problem) -> float``. It raises IsolatedTimeoutError where a call takes longer
        than 30 s, IsolatedError where it raises or exits, and TypeError where it does not return a number.

    Raises:
        ImportError: when the function cannot be imported or may not be used.
        ValueError: when the name is not of that form, or the function has no parameter of a given name.
    """
    folders = list(map(str, search_folders()))
    PROCESS.call("gradstats.rewards.user_reward:prepare", name, folders, list(parameters), seconds=_IMPORT_SECONDS)
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
    question = ("gradstats.rewards.user_reward:score", name, folders, parameters, completion, fields)
    answer: Answer = PROCESS.call(*question, seconds=_CALL_SECONDS)
    if "value" in answer:
        return answer["value"]
    raise TypeError(f"it returned {answer.get('other')}, which is not a number")
