"""Where problems come from: the embedded set, files, the hub, reasoning-gym's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gradstats.prompts.embedded import generate_problems
from gradstats.prompts.files import SUFFIXES, file_problems
from gradstats.prompts.hub import KNOWN_SETS, hub_problems
from gradstats.prompts.problem import Problem
from gradstats.prompts.reasoning_tasks import is_reasoning_gym_task, reasoning_gym_problems

__all__ = ["Problem", "load_prompts"]

_PREFIX = "reasoning-gym/"


def load_prompts(source: str | Path, n: int | None = None, *, rng: int = 0, **settings: Any) -> list[Problem]:
    """Load problems.

    Args:
        source: "embedded" for the step-by-step arithmetic that the embedded policy was trained on; a ``.jsonl``,
            ``.csv`` or ``.parquet`` file with the columns ``prompt`` and ``answer`` (or those named in
            ``settings``); "reasoning-gym/TASK" or a bare task name (extra ``tasks``); or the id of a data set on
            the hub (extra ``hub``).
        n: how many problems; a seeded subset, in its original order for a file. All of a file or data set when
            None; generated sets need it.
        rng: seed of the subset or of the generator.
        **settings: options of the source: ``prompt_column``, ``answer_column``, ``id_column`` and
            ``answer_format`` for files and the hub, ``config``, ``split`` and ``revision`` for the hub, the task's
            own settings for reasoning-gym, ``terms`` for "embedded".

    Returns:
        The problems, with unique, stable ids.

    Raises:
        FileNotFoundError: when a file is missing.
        ValueError: for an unreadable file, a missing column, more problems asked for than there are, or a source
            that is none of the above.
        ImportError: when the source needs an extra that is not installed.
        ConnectionError: when the hub cannot be reached.
    """
    if n is not None and n < 1:
        raise ValueError(f"n is {n}: ask for at least one problem")
    name = str(source)
    if name == "embedded":
        return _embedded(_required(n, name), rng, settings)
    if Path(source).suffix in SUFFIXES:
        return _subset(file_problems(Path(source), **settings), n, rng, name)
    if name.startswith(_PREFIX) or is_reasoning_gym_task(name):
        return reasoning_gym_problems(name.removeprefix(_PREFIX), _required(n, name), rng, **settings)
    if "/" in name:
        return hub_problems(name, n=n, seed=rng, **(KNOWN_SETS.get(name, {}) | settings))
    raise ValueError(
        f'source {name!r} is not known: give "embedded", a {", ".join(SUFFIXES)} file, '
        "reasoning-gym/TASK (with the extra gradstats[tasks]), or a data set id such as openai/gsm8k"
    )


def _embedded(n: int, seed: int, settings: dict[str, Any]) -> list[Problem]:
    try:
        generated = generate_problems(n, rng=seed, **settings)
    except TypeError as error:
        raise ValueError(f"the embedded problems refuse the settings {settings}: {error}") from error
    return [
        Problem(item.prompt_id, item.prompt, item.answer, "embedded", {"difficulty": item.difficulty})
        for item in generated
    ]


def _required(n: int | None, name: str) -> int:
    if n is None:
        raise ValueError(f"n is missing: {name!r} generates its problems, so say how many")
    return n


def _subset(problems: list[Problem], n: int | None, seed: int, name: str) -> list[Problem]:
    if n is None:
        return problems
    if n > len(problems):
        raise ValueError(f"n is {n}, but {name} holds only {len(problems)} problems")
    kept = np.sort(np.random.default_rng(seed).choice(len(problems), size=n, replace=False))
    return [problems[index] for index in kept]
