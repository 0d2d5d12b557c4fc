"""Problems of the procedural tasks of reasoning-gym (extra ``tasks``)."""

from __future__ import annotations

from gradstats.prompts.problem import Problem
from gradstats.system.worker import PROCESS, IsolatedError

# For some tasks a single problem takes many seconds to generate.
_SECONDS = 600.0


def reasoning_gym_problems(task: str, n: int, seed: int, **settings: object) -> list[Problem]:
    """Generate ``n`` problems of a reasoning-gym task, which depend only on the seed and the settings.

    Args:
        task: the task's name, for example "chain_sum".
        n: how many problems.
        seed: seed of the generator.
        **settings: the settings of the task, for example ``min_terms=2``.

    Returns:
        The problems; their ``details`` are what the task's scorer needs.

    Raises:
        ImportError: when reasoning-gym is not installed.
        ValueError: for an unknown task (with the nearest names), or settings that the task does not accept.
    """
    _refuse_unknown(task)
    problems = []
    for index in range(n):
        try:
            entry = PROCESS.call(
                "gradstats.prompts.task_entries:entry", task, settings, seed, n, index, seconds=_SECONDS
            )
        except IsolatedError as error:
            raise ValueError(f"the reasoning-gym task {task!r} refuses the settings {settings}: {error}") from error
        details = {"task": task, "settings": settings, "seed": seed, "size": n, "index": index}
        problems.append(Problem(f"{task}-{seed}-{index}", entry["question"], entry["answer"], "reasoning_gym", details))
    return problems


def is_reasoning_gym_task(name: str) -> bool:
    """Return whether ``name`` is a task that the installed reasoning-gym knows (False where it is not installed)."""
    try:
        from reasoning_gym.factory import DATASETS  # filled by importing the package
    except ImportError:
        return False
    return name in DATASETS


def _refuse_unknown(task: str) -> None:
    try:
        import reasoning_gym  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"the task {task!r} needs reasoning-gym, which is not installed: pip install 'gradstats[tasks]'"
        ) from error
    if not is_reasoning_gym_task(task):
        from difflib import get_close_matches

        from reasoning_gym.factory import DATASETS

        near = ", ".join(get_close_matches(task, DATASETS, n=3)) or "none"
        raise ValueError(f"reasoning-gym has no task {task!r}; nearest: {near}")
