"""What an executor is, and the one that does all work in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, runtime_checkable

from gradstats.system.progress import ProgressReport, Report, finishing_current_shard, progress_bar

Context = TypeVar("Context")
MadeContext = TypeVar("MadeContext", covariant=True)
GivenContext = TypeVar("GivenContext", covariant=True)
Value = TypeVar("Value")


#: One piece of work: called with the context of a worker, and where to count progress.
Part = Callable[[Context, Report], Value]


@dataclass
class CpuTime:
    """What the workers of a run have done."""

    n_parts: int = 0  # that they finished
    loading: float = 0.0  # processor seconds, of all threads, in which they loaded what the parts need
    parts: float = 0.0  # processor seconds of the parts

    def add(self, loading: float, part: float) -> None:
        """Count a part, and what was loaded for it."""
        self.n_parts += 1
        self.loading += loading
        self.parts += part

    def summary(self) -> dict[str, object]:
        """Return the processor seconds."""
        return {"processor_seconds": {"loading": round(self.loading, 2), "parts": round(self.parts, 2)}}


@runtime_checkable
class Work(Protocol[MadeContext]):
    """The inputs of a step: picklable, and small, since every worker receives them."""

    def open(self) -> MadeContext:
        """Load what every part needs; called once in each worker."""
        ...


@runtime_checkable
class WorkerPool(Protocol[GivenContext]):
    """The workers of one step."""

    def work(
        self,
        numbers: Sequence[int],
        part: Callable[[int], Part[GivenContext, Value]],
        report: ProgressReport,
        what: str = "shard",
    ) -> Generator[tuple[int, Value], None, None]:
        """Do parts, and yield the number and the value of each as soon as it is finished.

        A first Ctrl-C lets the parts that are being done finish, and be yielded, before KeyboardInterrupt is raised; a
        second one raises it immediately. An error of a part is raised as it was in the worker. Warnings of the workers
        are issued here.
        """
        ...


@runtime_checkable
class Executor(Protocol):
    """Makes the workers of each step of a run."""

    @property
    def spent(self) -> CpuTime:
        """What was done so far."""
        ...

    def crew(self, work: Work[Context]) -> AbstractContextManager[WorkerPool[Context]]:
        """Lend workers for a step; they are gone when the context is left."""
        ...

    def describe(self) -> dict[str, object]:
        """Return how the work was done, for the manifest of the run."""
        ...

    def counted_apart(self) -> Executor:
        """Return the same executor with counts of its own, for one run of several."""
        ...


def processor_seconds(context: object) -> float:
    """Return the processor seconds of this process so far, and of those that a context lets work (ranks)."""
    return time.process_time() + float(getattr(context, "processor_seconds", 0.0))


def ask(crew: WorkerPool[Context], part: Part[Context, Value], what: str) -> Value:
    """Let one worker do a single part, without a progress bar."""
    with progress_bar(what, 1, shown=False) as report:
        ((_, value),) = crew.work([0], lambda _: part, report, what)
    return value


@dataclass
class LocalExecutor:
    """Does all work in this process."""

    threads: int | None = None  # of torch; its own choice when None
    spent: CpuTime = field(default_factory=CpuTime)

    @contextmanager
    def crew(self, work: Work[Context]) -> Iterator[LocalCrew[Context]]:
        """Load what the parts need, and lend this process as the only worker."""
        with _threads(self.threads):
            start = processor_seconds(None)
            context = work.open()
            self.spent.loading += processor_seconds(context) - start
            try:
                yield LocalCrew(context, self.spent)
            finally:
                close = getattr(context, "close", None)
                if close is not None:  # the next step needs the memory of the device
                    close()

    def describe(self) -> dict[str, object]:
        """Return how the work was done."""
        return {"executor": "local", "threads": self.threads, **self.spent.summary()}

    def counted_apart(self) -> LocalExecutor:
        """Return the same executor with a count of its own, for one run of several."""
        return LocalExecutor(self.threads)


@dataclass(frozen=True)
class LocalCrew(Generic[Context]):
    """This process, see :class:`gradstats.runs.executors.local.WorkerPool`."""

    context: Context  # what the parts are called with
    spent: CpuTime

    def work(
        self,
        numbers: Sequence[int],
        part: Callable[[int], Part[Context, Value]],
        report: ProgressReport,
        what: str = "shard",
    ) -> Generator[tuple[int, Value], None, None]:
        """Do one part after another."""
        with finishing_current_shard(report.say, what) as interrupt:
            for number in numbers:
                start = processor_seconds(self.context)
                value = part(number)(self.context, report)
                self.spent.add(0.0, processor_seconds(self.context) - start)
                yield number, value
                interrupt.stop_if_asked()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch use so many threads while the context is open; None changes nothing."""
    if number is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
