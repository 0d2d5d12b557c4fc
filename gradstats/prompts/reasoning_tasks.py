"""Problems of reasoning-gym's procedural tasks (extra ``tasks``)."""

from __future__ import annotations

from typing import Any

from gradstats.prompts.problem import Problem


def reasoning_gym_problems(task: str, n: int, seed: int, **settings: Any) -> list[Problem]:
    """Generate ``n`` problems of a reasoning-gym task.

    Args:
        task: the task's name, for example "chain_sum".
        n: how many problems.
        seed: seed of the generator.
        **settings: the task's own settings, for example ``min_terms=2``.

    Raises:
        ImportError: when reasoning-gym is not installed.
        ValueError: for an unknown task (with the nearest names), or settings that the task refuses.
    """
    gym = _import_reasoning_gym(task)
    try:
        data = gym.create_dataset(task, size=n, seed=seed, **settings)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"the reasoning-gym task {task!r} refuses the settings {settings or '{}'}: {error}") from error
    return [
        Problem(
            prompt_id=f"{task}-{seed}-{index}",
            prompt=entry["question"],
            answer=str(entry["answer"]),
            reward="reasoning_gym",
            details={"task": task, "settings": settings, "seed": seed, "size": n, "index": index},
        )
        for index, entry in enumerate(data)
    ]


def is_reasoning_gym_task(name: str) -> bool:
    """Whether ``name`` is a task that the installed reasoning-gym knows (False where it is not installed)."""
    try:
        from reasoning_gym.factory import DATASETS  # filled by importing the package
    except ImportError:
        return False
    return name in DATASETS


def task_scorer(task: str, settings: dict[str, Any], seed: int, size: int) -> Any:
    """The reasoning-gym data set object whose ``score_answer(answer, entry)`` grades answers of that task."""
    return _import_reasoning_gym(task).create_dataset(task, size=size, seed=seed, **settings)


def _import_reasoning_gym(task: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError(
            f"the task {task!r} needs reasoning-gym, which is not installed: pip install 'gradstats[tasks]'"
        ) from error
    if not is_reasoning_gym_task(task):
        from difflib import get_close_matches

        from reasoning_gym.factory import DATASETS

        near = ", ".join(get_close_matches(task, DATASETS, n=3)) or "none is near"
        raise ValueError(f"reasoning-gym has no task {task!r}; nearest: {near}")
    return reasoning_gym
