"""The process of a run whose shards are made by workers: it shows what they do, and waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.claims import BETWEEN_LOOKS, Board
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import rounds_of
from gradstats.runs.workers import LocalWorker, WorkerDiedError, local_workers
from gradstats.system.files import read_json
from gradstats.system.progress import ProgressReport, finishing_current_shard, progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned

if TYPE_CHECKING:
    from gradstats.runs.ray_workers import RayWorker

#: What to do where every worker died.
_REMEDY = (
    "if memory ran out, lower measurement.token_budget or sampling.batch_size, or give each worker more; what was "
    "finished is kept, and the same command resumes from there"
)


@contextmanager
def _started(run: RunDirectory, report: ProgressReport) -> Iterator[Sequence[LocalWorker | RayWorker]]:
    """Lend the workers of a run, which do not outlive the context."""
    execution = run.experiment.execution
    with ExitStack() as opened:
        workers: Sequence[LocalWorker | RayWorker]
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
                            failure = RuntimeError(f"{error}, and no worker is left: {_REMEDY}")
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


def _unfinished(run: RunDirectory) -> tuple[str, Shards[Rollouts], dict[int, int], int] | None:
    """Return the first step that lacks shards: its name, its shards, how many steps of the bar each of those that are
    missing is, and how many there are in all.
    """
    sizes, plan = [size for one in rounds_of(run.rollouts) for size in one.batches], run.values / PLAN
    n_prefixes = n_planned(read_json(plan), plan) if plan.exists() else 0

    def read(path: Path) -> Rollouts:
        in_part = path.parent == run.scored  # whose shards hold no completions
        return read_rollouts(run.rollouts / path.name if in_part else path, partial=True)

    # Of a run that measures a part, not every finished shard has measured anything.
    measured, measured_suffix = (run.scored, ".parquet") if run.measures_part else (run.measurement, "")
    for name, folder, suffix, of_step in (
        ("sampling", run.rollouts, ".parquet", sizes),
        ("values of prefixes", run.values, ".parquet", [1] * n_prefixes),
        ("measuring", measured, measured_suffix, sizes),
    ):
        shards = Shards(folder, suffix, read, Rollouts.to_parquet)
        if missing := shards.missing(len(of_step)):
            return name, shards, {number: of_step[number] for number in missing}, sum(of_step)
    return None


def _watched(run: RunDirectory, progress: bool) -> Iterator[None]:
    """Show what the workers have done, again and again."""
    while True:
        if (step := _unfinished(run)) is None:
            yield
            continue
        name, shards, missing, total = step
        run.tracking.begin()
        with progress_bar(name, total, done=total - sum(missing.values()), shown=progress) as report:

            def show(number: int, name: str = name, shards: Shards[Rollouts] = shards, report: Any = report) -> None:
                if name != "values of prefixes":  # which hold no completions
                    rollouts = shards.read_one(number)
                    run.tracking.shard(name, rollouts)
                    if name == "sampling":
                        report.completions(rollouts.rewards, rollouts.lengths, before=True)

            board = Board(shards, missing, report, shards.is_made, show)
            while board.missing:
                yield
                board.look_now_and_then()
