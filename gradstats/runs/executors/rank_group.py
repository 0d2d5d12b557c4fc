"""Workers that are groups of processes, each of which holds a part of the weights: for models larger than one GPU.

A group of ranks does one part at a time together. To an executor it is a worker like any other: its *work* is to start
the ranks of one machine, its *parts* are handed to all of them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Generic

from gradstats.runs.executors.local import Context, CpuTime, Executor, Part, Report, Value, Work, WorkerPool
from gradstats.runs.executors.rank_process import Answer, Progress, RankSetup, serve
from gradstats.runs.executors.ray_worker import WorkerEnvironment, error_of
from gradstats.system.progress import ProgressReport
from gradstats.system.worker import search_path

# A part that kills its ranks as often as this will kill them again.
_MOST_DEATHS = 3
# Seconds after the first failure of a rank in which others may report why it failed: a rank that died, or lost its
# memory, takes its peers along.
_GRACE = 2.0


@dataclass(frozen=True)
class RankedExecutor:
    """Gives each worker of another executor a group of ranks."""

    executor: Executor
    n_ranks: int

    @contextmanager
    def crew(self, work: Work[Context]) -> Iterator[RankedCrew[Context]]:
        """Lend groups for a step; they end when the context is left."""
        ranked = RankedWork(work, self.n_ranks)
        try:
            with self.executor.crew(ranked) as crew:
                yield RankedCrew(crew)
        finally:
            ranked.close()

    @property
    def spent(self) -> CpuTime:
        """What was done so far."""
        return self.executor.spent

    def describe(self) -> dict[str, object]:
        """Return how the work was done."""
        return self.executor.describe() | {"ranks_per_worker": self.n_ranks}

    def counted_apart(self) -> RankedExecutor:
        """Return the same executor with counts of its own, for one run of several."""
        return RankedExecutor(self.executor.counted_apart(), self.n_ranks)


@dataclass(frozen=True)
class RankedCrew(Generic[Context]):
    """Groups of ranks, see :class:`gradstats.runs.executors.local.WorkerPool`."""

    crew: WorkerPool[RankGroup[Context]]  # the workers that have started them

    def work(
        self,
        numbers: Sequence[int],
        part: Callable[[int], Part[Context, Value]],
        report: ProgressReport,
        what: str = "shard",
    ) -> Generator[tuple[int, Value], None, None]:
        """Do each part in one of the groups."""
        yield from self.crew.work(numbers, lambda number: OnRanks(part(number)), report, what)


@dataclass(frozen=True)
class OnRanks(Generic[Context, Value]):
    """A part for all ranks of a group."""

    part: Part[Context, Value]  # the part of each rank, which passes through the model as often as that of the others

    def __call__(self, group: RankGroup[Context], report: Report) -> Value:
        """Return the value of the first rank."""
        return group.do(self.part, report)


@dataclass
class RankedWork(Generic[Context]):
    """The work of a worker that is a group."""

    work: Work[Context]  # what each rank opens
    n_ranks: int
    _opened: list[RankGroup[Context]] = field(default_factory=list)

    def open(self) -> RankGroup[Context]:
        """Start the ranks."""
        group = RankGroup(self.work, self.n_ranks)
        self._opened.append(group)
        group.start()
        return group

    def close(self) -> None:
        """End the ranks that were started in this process."""
        for group in self._opened:
            group.close()


class _RankDiedError(Exception):
    """A rank has ended."""


@contextlib.contextmanager
def _dead_or_alive() -> Iterator[None]:
    """Send something to a rank that may have died, as its answer will show."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        yield


@dataclass(frozen=True)
class _Rank:
    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def start(cls, number: int, n_ranks: int) -> _Rank:
        """Start one of some ranks on this machine."""
        own, other = Pipe()
        environment = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(n_ranks)}
        environment |= {"PYTHONPATH": search_path()} | ({"TQDM_DISABLE": "1"} if number else {})  # one progress bar
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {serve.__module__} import serve; serve({other.fileno()})"],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach it: the current part may finish
            env=os.environ | environment,
        )
        other.close()
        return cls(process, own)


class RankGroup(Generic[Context]):
    """Processes of this machine that do every part together.

    Where one of them dies, all others are killed, since they wait for it, and new ones do the part again. Where memory
    runs out on one, new ones do it with half as many tokens at once.
    """

    def __init__(self, work: Work[Context], n_ranks: int) -> None:
        self.processor_seconds = 0.0  # of all ranks, in what they have answered
        self._work, self._n_ranks = work, n_ranks
        self._ranks: list[_Rank] = []
        self._folder: Path | None = None
        self._token_budget: int | None = None
        self._deaths = 0

    def start(self) -> None:
        """Start the ranks and let each open the work."""
        self._until_done(lambda: None)

    def do(self, part: Part[Context, Value], report: Report) -> Value:
        """Let all ranks do a part, and return the value of the first."""
        self._deaths = 0
        pickled = pickle.dumps(part, protocol=5)

        def together() -> Value:
            for rank in self._ranks:
                with _dead_or_alive():
                    rank.connection.send_bytes(pickled)
            return self._answers(report)

        return self._until_done(together)

    def close(self) -> None:
        """Kill the ranks."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
            rank.connection.close()
        self._ranks.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _until_done(self, do: Callable[[], Value]) -> Value:
        """Do something with all ranks; again with new ones where one died or had too little memory."""
        from gradstats.gradients.distributed import GroupMemoryError

        while True:
            try:
                if not self._ranks:
                    self._start()
                return do()
            except GroupMemoryError as error:
                self.close()
                self._token_budget = error.token_budget
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            except _RankDiedError as error:
                self.close()
                self._deaths += 1
                if self._deaths == _MOST_DEATHS:
                    raise RuntimeError(
                        f"{error}, as in {_MOST_DEATHS - 1} groups before: is memory short? Measure with "
                        "a smaller token_budget, or on more ranks (ranks_per_worker)"
                    ) from None
                warnings.warn(f"{error}: a new group of {self._n_ranks} continues", RuntimeWarning, stacklevel=2)
            except BaseException:  # Ctrl-C as well: the other ranks wait in the middle of a pass
                self.close()
                raise

    def _start(self) -> None:
        import torch

        # The ranks find each other through a file, which an earlier group must not have used.
        self._folder = Path(tempfile.mkdtemp(prefix="gradstats-ranks-"))
        store, threads = str(self._folder / "store"), torch.get_num_threads()
        work, surroundings = pickle.dumps(self._work, protocol=5), WorkerEnvironment.here(threads, without_gpu=False)
        for number in range(self._n_ranks):
            rank = _Rank.start(number, self._n_ranks)
            self._ranks.append(rank)
            with _dead_or_alive():
                rank.connection.send(
                    RankSetup(work, number, self._n_ranks, store, surroundings, self._token_budget),
                )
        self._answers(None)

    def _answers(self, report: Report | None) -> Any:
        """Wait for the answers of all ranks, and return the value of the first."""
        from gradstats.gradients.distributed import GroupMemoryError

        answers, dead = self._collected(report)
        self.processor_seconds += sum(one.processor_seconds for one in answers.values())
        errors = [error_of(answers[number].pickled) for number in sorted(answers) if answers[number].failed]
        for error in errors:
            if isinstance(error, GroupMemoryError):
                raise error
        if dead:  # the others may have failed for that reason
            code = self._ranks[dead[0]].process.wait()
            raise _RankDiedError(f"rank {dead[0]} of {self._n_ranks} died (exit code {code})")
        if errors:
            raise errors[0]
        for of_numbers, sentence in answers[0].remarks:
            warnings.warn(sentence, RuntimeWarning if of_numbers else UserWarning, stacklevel=3)
        return pickle.loads(answers[0].pickled)

    def _collected(self, report: Report | None) -> tuple[dict[int, Answer], list[int]]:
        """Return the answers of all ranks, or of those that came soon after one failed, and the ranks that died."""
        waiting = {rank.connection: number for number, rank in enumerate(self._ranks)}
        answers: dict[int, Answer] = {}
        dead: list[int] = []
        until = None
        while waiting:
            ready = wait(list(waiting), None if until is None else max(until - time.monotonic(), 0.0))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    dead.append(waiting.pop(connection))
                else:
                    if isinstance(message, Answer):
                        answers[waiting.pop(connection)] = message
                    elif isinstance(message, Progress) and report is not None:
                        getattr(report, message.method)(*message.counts)
            if until is None and (dead or any(one.failed for one in answers.values())):
                until = time.monotonic() + _GRACE
        return answers, dead
