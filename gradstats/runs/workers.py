"""Workers: processes that make the shards of a run, on this machine or by ray on many, and the one that waits for them.

Each is a process of the module :mod:`gradstats.runs.worker`, or for a model larger than one GPU a ``torchrun`` of as
many ranks, and does what ``gradstats run`` does but the analysis: it claims shards in the run directory.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradstats.config.sections import ExecutionSection
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.claims import BETWEEN_LOOKS, Board
from gradstats.runs.directory import RunDirectory
from gradstats.runs.growth import rounds_of
from gradstats.system.environment import gpus_of_worker, installed
from gradstats.system.files import read_json
from gradstats.system.progress import ProgressReport, finishing_current_shard, progress_bar
from gradstats.system.shards import PLAN, Shards, n_planned
from gradstats.system.user_code import search_folders
from gradstats.system.worker import search_path


class WorkerDiedError(RuntimeError):
    """A worker has ended without saying why."""


def require_execution(section: ExecutionSection) -> None:
    """Refuse settings that nothing follows, and an executor that is not installed."""
    if section.executor == "local" and section.address is not None:
        raise ValueError(
            f"execution.address is {section.address}, and the executor local starts its workers on this machine: "
            "choose --executor ray, or leave it out"
        )
    if section.executor == "ray" and installed("ray") is None:
        raise ImportError(
            "execution.executor is ray, which is not installed: pip install 'gradstats[ray]', or run with "
            "--executor local"
        )
    if section.gpus_per_worker and section.gpus_per_worker < section.ranks_per_worker:
        raise ValueError(
            f"execution.gpus_per_worker is {section.gpus_per_worker}, but each of the {section.ranks_per_worker} ranks "
            f"of a worker needs a GPU of its own: set it to {section.ranks_per_worker}"
        )


class Worker(Protocol):
    """A worker, wherever it is."""

    def is_running(self) -> bool:
        """Return whether it has not ended; raise the error that ended it."""
        ...

    def stop(self) -> None:
        """Let it end when its current shard is finished."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


@dataclass(frozen=True)
class Task:
    """What a worker needs to know, wherever it is started."""

    work: bytes  # experiment, run directory and folders of the user's code, pickled
    folder: str  # the working directory, which relative paths of an experiment refer to
    paths: str  # where modules are searched for
    threads: int
    n_ranks: int
    gpus: int | None  # None where there is none to share out

    @classmethod
    def of(cls, run: RunDirectory, execution: ExecutionSection) -> Task:
        """Return what the workers of a run need."""
        work = pickle.dumps((run.experiment, run.path.resolve(), search_folders()))
        threads, n_gpus = execution.threads or 1, execution.gpus_per_worker
        return cls(work, os.getcwd(), search_path(), threads, execution.ranks_per_worker, n_gpus)


class LocalWorker:
    """A worker on this machine, with the numbers of its GPUs; None leaves it those that this process sees."""

    def __init__(self, task: Task, gpus: str | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gradstats-worker-"))
        file = self._folder / "work"
        file.write_bytes(task.work)
        self._said = (self._folder / "said").open("wb")
        module = ["-m", "gradstats.runs.worker", str(file)]
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={task.n_ranks}"]
        environment = {"PYTHONPATH": task.paths, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(task.threads)}
        environment |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        self._process = subprocess.Popen(
            [sys.executable, *(ranks if task.n_ranks > 1 else []), *module],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            cwd=task.folder if os.path.isdir(task.folder) else None,
            start_new_session=True,  # Ctrl-C must not reach it: the current shard may finish
            env=os.environ | environment,
        )

    def is_running(self) -> bool:
        """Return whether it has not ended; raise the error that ended it."""
        code = self._process.poll()
        if code is None:
            return True
        left = self._folder / "work.error"
        error = pickle.loads(left.read_bytes()) if left.exists() else None
        said = (self._folder / "said").read_text(errors="replace").strip() if self._folder.exists() else ""
        self.kill()
        if error is not None:
            raise error
        if code not in (0, 130):
            raise WorkerDiedError(f"a worker died (exit code {code})" + (f": {said[-1000:]}" if said else ""))
        return False

    def stop(self) -> None:
        """Let it end when its current shard is finished."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it at once, with its ranks, whose standard input ends."""
        self._process.kill()
        self._process.communicate()
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def started(run: RunDirectory, report: ProgressReport) -> Iterator[list[Worker]]:
    """Lend the workers of a run, which do not outlive the context."""
    execution, device = run.experiment.execution, run.experiment.policy.device
    if execution.executor == "ray":
        from gradstats.runs.ray_workers import connected, workers_of_ray

        with connected(execution, device) as settled:
            yield from _ended(workers_of_ray(run, Task.of(run, settled), settled, report))
        return
    import torch

    n_gpus = torch.cuda.device_count()
    settled = execution.with_gpus(device, n_gpus)
    settled.require_gpus(n_gpus)
    task, each = Task.of(run, settled), settled.gpus_per_worker or 0
    yield from _ended([LocalWorker(task, gpus_of_worker(k, each, n_gpus)) for k in range(settled.workers)])


def _ended(workers: list[Worker]) -> Iterator[list[Worker]]:
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
    with progress_bar("workers", 1, shown=False) as report, started(run, report) as workers:
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
