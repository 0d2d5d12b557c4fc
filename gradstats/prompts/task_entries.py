"""reasoning-gym's entries and scorers; imported in the isolated process only, where sets have one order.

Some tasks depend on the order of sets of strings, others draw from Python's own generator besides the one they seed:
elsewhere, the same seed would give other problems from one process to the next.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import reasoning_gym


def entry(task: str, settings: dict[str, Any], seed: int, size: int, index: int) -> dict[str, str]:
    """Question and answer of one problem of a task."""
    made = _entry(task, settings, seed, size, index)
    return {"question": made["question"], "answer": str(made["answer"])}


def credit(task: str, settings: dict[str, Any], seed: int, size: int, index: int, question: str, answer: str) -> float:
    """What the task's own scorer gives an answer, between 0 and 1.

    Raises:
        ValueError: when the seed now gives another question.
    """
    made = _entry(task, settings, seed, size, index)
    if made["question"] != question:
        raise ValueError(f"the task {task} now gives another problem number {index} for seed {seed}")
    return float(_data(task, json.dumps(settings), seed, size).score_answer(answer=answer, entry=made))


def _entry(task: str, settings: dict[str, Any], seed: int, size: int, index: int) -> dict[str, Any]:
    return _cached_entry(task, json.dumps(settings), seed, size, index)


@functools.lru_cache(maxsize=4096)
def _cached_entry(task: str, settings: str, seed: int, size: int, index: int) -> dict[str, Any]:
    random.seed(f"{seed}-{index}")  # the same whichever were made before it
    return _data(task, settings, seed, size)[index]


@functools.lru_cache(maxsize=64)
def _data(task: str, settings: str, seed: int, size: int) -> Any:
    return reasoning_gym.create_dataset(task, size=size, seed=seed, **json.loads(settings))
