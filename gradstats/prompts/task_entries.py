"""Problems and scorers of reasoning-gym, for the isolated worker process only.

Some tasks depend on the order of sets of strings, and others draw from Python's global generator in addition to the one
that they seed. The worker fixes the hash seed, and :func:`entry` seeds the global generator; in any other process the
same seed could give different problems.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import reasoning_gym

from gradstats.prompts.problem import Settings


def entry(task: str, settings: Settings, seed: int, size: int, index: int) -> dict[str, str]:
    """Return the question and answer of one problem of a task."""
    record = _entry(task, settings, seed, size, index)
    return {"question": record["question"], "answer": str(record["answer"])}


def credit(task: str, settings: Settings, seed: int, size: int, index: int, question: str, answer: str) -> float:
    """Return the credit that the task's scorer gives an answer, between 0 and 1."""
    record = _entry(task, settings, seed, size, index)
    if record["question"] != question:
        raise ValueError(
            f"problem {index} of the task {task} with seed {seed} is no longer the same: install the version of "
            "reasoning-gym that generated the problems"
        )
    return float(_data(task, json.dumps(settings), seed, size).score_answer(answer=answer, entry=record))


def _entry(task: str, settings: Settings, seed: int, size: int, index: int) -> dict[str, Any]:
    return _cached_entry(task, json.dumps(settings), seed, size, index)


@functools.lru_cache(maxsize=4096)
def _cached_entry(task: str, settings: str, seed: int, size: int, index: int) -> dict[str, Any]:
    random.seed(f"{seed}-{index}")  # so that an entry does not depend on those generated before it
    return _data(task, settings, seed, size)[index]


@functools.lru_cache(maxsize=64)
def _data(task: str, settings: str, seed: int, size: int) -> Any:
    return reasoning_gym.create_dataset(task, size=size, seed=seed, **json.loads(settings))
