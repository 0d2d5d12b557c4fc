"""The executor of one process: parts are done here, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

from gradstats.runs.executors.seam import Context, Part, Value, Work
from gradstats.system.interrupts import finishing_current_shard
from gradstats.system.progress import ProgressReport


@dataclass(frozen=True)
class LocalExecutor:
    """Does all work in this process."""

    @contextmanager
    def crew(self, work: Work[Context]) -> Iterator[LocalCrew[Context]]:
        """Load what the parts need, and lend this process as the only worker."""
        yield LocalCrew(work.open())

    def describe(self) -> dict[str, object]:
        """Return how the work was done."""
        return {"executor": "local"}


@dataclass(frozen=True)
class LocalCrew(Generic[Context]):
    """This process, see :class:`gradstats.runs.executors.seam.Crew`.

    Attributes:
        context: what the parts are called with.
    """

    context: Context

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
                yield number, part(number)(self.context, report)
                interrupt.stop_if_asked()
