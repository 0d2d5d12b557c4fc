"""Workers: processes that make the shards of a run.

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradstats.config.sections import ExecutionSection
from gradstats.runs.directory import RunDirectory
from gradstats.system.environment import gpus_of_worker
from gradstats.system.user_code import search_folders
from gradstats.system.worker import search_path


class WorkerDiedError(RuntimeError):
    """A worker has ended without saying why."""


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
    """A worker on this machine, with the numbers of its GPUs; None leaves it those that this process sees.

    What it is told, and what it says, lies in the run, whose next process removes what a killed one leaves.
    """

    def __init__(self, task: Task, run: Path, gpus: str | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=".worker-", suffix=".partial", dir=run))
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


def local_workers(run: RunDirectory) -> list[LocalWorker]:
    """Start the workers of a run on this machine."""
    n_gpus = _n_gpus()
    settled = run.experiment.execution.with_gpus(run.experiment.policy.device, n_gpus)
    settled.require_gpus(n_gpus)
    task, each = Task.of(run, settled), settled.gpus_per_worker or 0
    return [LocalWorker(task, run.path.resolve(), gpus_of_worker(k, each, n_gpus)) for k in range(settled.workers)]


def _n_gpus() -> int:
    """Return how many GPUs there are; torch, which the workers wait for, is asked where there is a driver of any."""
    if not any(next(Path("/dev").glob(node), None) for node in ("nvidia[0-9]*", "kfd", "dxg")):
        return 0
    import torch

    return torch.cuda.device_count()
