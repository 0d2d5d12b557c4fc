"""The process of a run whose shards are made by workers: it shows what they do, and waits for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradstats.rollouts.table import read_rollouts
from gradstats.runs.claims import BETWEEN_LOOKS, Board
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import rounds_of
from gradstats.runs.workers import Worker, WorkerDiedError, local_workers
from gradstats.system.files import read_json
from gradstats.system.progress import ProgressReport, finishing_current_shard, progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned


@contextmanager
def _started(run: RunDirectory, report: ProgressReport) -> Iterator[list[Worker]]:
    """Lend the workers of a run, which do not outlive the context."""
    execution, workers = run.experiment.execution, list[Worker]()
    with ExitStack() as opened:
        if execution.executor == "ray":
            from gradstats.runs.ray_workers import connected, workers_of_ray

            settled = opened.enter_context(connected(execution, run.experiment.policy.device))
            workers = workers_of_ray(run, settled, report)
        else:
            workers = local_workers(run)
        try:
            yield workers
        finally:
            for worker in workers:
                worker.kill()


def let_workers_make(run: RunDirectory, progress: bool) -> None:
    """Start the workers of a run, show their progress, and wait until they have made all shards.

    The shard of a worker that dies is made by the others. An error of one lets the others finish their current shards;
    so does Ctrl-C, and a second one ends them.
    """
    run.record()  # by which workers on other machines recognise the directory
    with progress_bar("workers", 1, shown=False) as report, _started(run, report) as workers:
        running, failure = list(workers), None
        with finishing_current_shard(report.say) as interrupt:
            stopping = False
            for _ in _watched(run, progress):
                for worker in list(running):
                    try:
                        if worker.is_running():
                            continue
                    except WorkerDiedError as error:
                        if len(running) == 1 and failure is None:
                            failure = _all_died(error)
                        elif failure is None:
                            report.say(f"{error}: the others make its shard")
                    except Exception as error:
                        failure = failure or error
                    running.remove(worker)
                if not running:
                    break
                if (interrupt.asked or failure is not None) and not stopping:
                    stopping = True
                    for worker in running:
                        worker.stop()
                time.sleep(BETWEEN_LOOKS)
        if failure is not None:
            raise failure
        interrupt.stop_if_asked()


def _all_died(error: WorkerDiedError) -> RuntimeError:
    return RuntimeError(
        f"{error}, and no worker is left: if memory ran out, lower measurement.token_budget or sampling.batch_size, "
        "or give each worker more; what was finished is kept, and the same command resumes from there"
    )


@dataclass(frozen=True)
class _Step:
    """What is shown of a step: its shards, and how many steps of the bar each is."""

    name: str
    folder: Path
    suffix: str
    rollouts: str | None  # where in a shard its completions are; None where they are those of another step
    sizes: list[int]

    def shards(self) -> Shards[Any]:
        """Return the shards."""
        return Shards(self.folder, self.suffix, read_rollouts, lambda *_: None)

    def missing(self) -> dict[int, int]:
        """Return the size of each shard that is not there."""
        there = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        path = self.shards().path
        return {number: size for number, size in enumerate(self.sizes) if path(number).name not in there}


def _steps(run: RunDirectory) -> list[_Step]:
    sizes = [size for one in rounds_of(run.rollouts) for size in one.batches]
    plan = run.values / PLAN
    continued = [1] * n_planned(read_json(plan), plan) if plan.exists() else []
    return [
        _Step("sampling", run.rollouts, ".parquet", "", sizes),
        _Step("values of prefixes", run.values, ".parquet", None, continued),
        _Step("measuring", run.measurement, "", "rollouts.parquet", sizes),
    ]


def _watched(run: RunDirectory, progress: bool) -> Iterator[None]:
    """Show what the workers have done, again and again."""

    def current() -> _Step | None:
        return next((step for step in _steps(run) if step.missing()), None)

    while True:
        step = current()
        if step is None:
            yield
            continue
        missing, shards, total = step.missing(), step.shards(), sum(step.sizes)
        run.tracking.begin()
        with progress_bar(step.name, total, done=total - sum(missing.values()), shown=progress) as report:

            def show(number: int, step: _Step = step, report: ProgressReport = report) -> None:
                if step.rollouts is not None:
                    rollouts = read_rollouts(step.shards().path(number) / step.rollouts, partial=True)
                    run.tracking.shard(step.name, rollouts)
                    if step.name == "sampling":
                        report.completions(rollouts.rewards, rollouts.lengths, before=True)

            board = Board(shards, missing, report, shards.is_made, show)
            while board.missing and current() == step:
                yield
                board.look_now_and_then()
            board.look()
