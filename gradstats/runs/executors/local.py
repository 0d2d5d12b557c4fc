"""The executor of one process: parts are done here, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic

from gradstats.runs.executors.seam import Context, Part, Spent, Value, Work, processor_seconds
from gradstats.system.interrupts import finishing_current_shard
from gradstats.system.progress import ProgressReport


@dataclass
class LocalExecutor:
    """Does all work in this process.

    Attributes:
        threads: of torch; its own choice when None.
        spent: what was done so far.
    """

    threads: int | None = None
    spent: Spent = field(default_factory=Spent)

    @contextmanager
    def crew(self, work: Work[Context]) -> Iterator[LocalCrew[Context]]:
        """Load what the parts need, and lend this process as the only worker."""
        with _threads(self.threads):
            start = processor_seconds(None)
            context = work.open()
            self.spent.loading += processor_seconds(context) - start
            yield LocalCrew(context, self.spent)

    def describe(self) -> dict[str, object]:
        """Return how the work was done."""
        return {"executor": "local", "threads": self.threads, **self.spent.summary()}

    def counted_apart(self) -> LocalExecutor:
        """Return the same executor with a count of its own, for one run of several."""
        return LocalExecutor(self.threads)


@dataclass(frozen=True)
class LocalCrew(Generic[Context]):
    """This process, see :class:`gradstats.runs.executors.seam.Crew`.

    Attributes:
        context: what the parts are called with.
        spent: where parts are counted.
    """

    context: Context
    spent: Spent

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
