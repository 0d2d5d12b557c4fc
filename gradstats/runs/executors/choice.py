"""Which executor does the work of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradstats.config.sections import ExecutionSection
from gradstats.runs.executors.local import Executor, LocalExecutor
from gradstats.system.environment import installed


def require_executor(section: ExecutionSection) -> None:
    """Refuse settings that no executor follows, and one that is not installed."""
    if section.executor == "local":
        for name, defaults in (("workers", (1,)), ("gpus_per_worker", (None, 0)), ("address", (None,))):
            if getattr(section, name) not in defaults:
                raise ValueError(
                    f"execution.{name} is {getattr(section, name)}, but the executor local works in this process: "
                    "choose --executor ray, or leave it out"
                )
    elif installed("ray") is None:
        raise ImportError(
            "execution.executor is ray, which is not installed: pip install 'gradstats[ray]', or run with "
            "--executor local"
        )
    if section.gpus_per_worker and section.gpus_per_worker < section.ranks_per_worker:
        raise ValueError(
            f"execution.gpus_per_worker is {section.gpus_per_worker}, but each of the {section.ranks_per_worker} ranks "
            f"of a worker needs a GPU of its own: set it to {section.ranks_per_worker}"
        )


@contextmanager
def executor_of(section: ExecutionSection, device: str = "auto") -> Iterator[Executor]:
    """Lend the executor that the settings choose, for a policy's device."""
    require_executor(section)
    if section.executor == "local":
        yield _in_groups(LocalExecutor(section.threads), section)
        return
    from gradstats.runs.executors.ray_executor import RayExecutor

    executor = RayExecutor(section, device)
    try:
        yield _in_groups(executor, section)
    finally:
        executor.close()


def _in_groups(executor: Executor, section: ExecutionSection) -> Executor:
    """Make each worker a group of ranks, where several are asked for."""
    if section.ranks_per_worker == 1:
        return executor
    from gradstats.runs.executors.rank_group import RankedExecutor

    return RankedExecutor(executor, section.ranks_per_worker)
