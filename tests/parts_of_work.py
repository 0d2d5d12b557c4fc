"""Parts for executors, which workers in other processes import by this name, and workers that are killed."""

import os
import signal
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradstats.config.validation import WrongSetting, WrongSettingsError
from gradstats.runs.executors.ray_executor import RayCrew, RayExecutor


@dataclass(frozen=True)
class Tens:
    """Work whose context is the number 10; each opening leaves a file."""

    folder: Path

    def open(self):
        (self.folder / f"opened-{os.getpid()}").touch()
        warnings.warn("opened", UserWarning, stacklevel=1)
        return 10


@dataclass(frozen=True)
class Times:
    """The context times a number."""

    number: int

    def __call__(self, context, report):
        report.chunk(2, 7)
        return context * self.number


@dataclass(frozen=True)
class Dies:
    """Kills its worker, at most so many times, in the middle of another part: when that first counts something."""

    part: object
    folder: Path
    name: str
    times: int = 1

    def __call__(self, context, report):
        return self.part(context, _Killing(report, self))

    def die(self):
        deaths = len(list(self.folder.glob(f"died-{self.name}-*")))
        if deaths < self.times:
            (self.folder / f"died-{self.name}-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class _Killing:
    report: object
    dies: Dies

    def tokens(self, count):
        self.report.tokens(count)
        self.dies.die()

    def chunk(self, n_sequences, n_tokens):
        self.report.chunk(n_sequences, n_tokens)
        self.dies.die()


@dataclass(frozen=True)
class Fails:
    """Raises an error whose constructor takes other arguments than it keeps."""

    number: int

    def __call__(self, context, report):
        if self.number == 1:
            raise WrongSettingsError([WrongSetting(("a", "b"), "is 7: choose 8")], "the file")
        time.sleep(0.3)
        return self.number


@dataclass(frozen=True)
class PressesCtrlC:
    """Interrupts the process that started the run, and then finishes."""

    number: int
    pid: int

    def __call__(self, context, report):
        if self.number == 0:
            os.kill(self.pid, signal.SIGINT)
        time.sleep(1.0)
        return self.number


class KillingExecutor(RayExecutor):
    """Kills workers in the middle of some parts; ``doomed``: (what, number) of these, ``folder``: for marks."""

    doomed: set
    folder: Path

    def counted_apart(self):
        return self

    @contextmanager
    def crew(self, work):
        with super().crew(work) as crew:
            yield _KillingCrew(crew, self)


@dataclass(frozen=True)
class _KillingCrew:
    crew: RayCrew
    executor: KillingExecutor

    def work(self, numbers, part, report, what="shard"):
        def doomed(number):
            whole = part(number)
            if (what, number) not in self.executor.doomed:
                return whole
            return Dies(whole, self.executor.folder, f"{what}-{number}")

        return self.crew.work(numbers, doomed, report, what)
