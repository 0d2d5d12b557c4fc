"""Parts for groups of ranks, which the ranks import by this name; each needs all of them, as a sharded model does."""

import os
import signal
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from gradstats.config.validation import WrongSetting, WrongSettingsError
from gradstats.gradients.distributed import GroupMemoryError
from gradstats.runs.executors.rank_group import RankedExecutor


@dataclass
class Context:
    """What the ranks of these tests open."""

    rank: int
    in_step: bool = True
    token_budget: int = 100


@dataclass(frozen=True)
class Pair:
    """Work that leaves a file for each opening of each rank."""

    folder: Path
    in_step: bool = True

    def open(self):
        rank = distributed.get_rank()
        (self.folder / f"opened-{rank}-{os.getpid()}").touch()
        warnings.warn(f"opened {rank}", UserWarning, stacklevel=1)
        return Context(rank, self.in_step)


@dataclass(frozen=True)
class Total:
    """A number from each rank, added up: the number, and more from later ranks."""

    number: int

    def __call__(self, context, report):
        total = torch.tensor(self.number + context.rank)
        distributed.all_reduce(total)
        report.chunk(2, 7)
        return int(total)


@dataclass(frozen=True)
class Budget:
    """The token budget with which the part was done: at most 60, since memory runs out on the second rank above."""

    def __call__(self, context, report):
        if context.rank == 1 and context.token_budget > 60:
            raise GroupMemoryError(4, context.token_budget, context.token_budget // 2)
        distributed.barrier()
        return context.token_budget


@dataclass(frozen=True)
class Refuses:
    """An error of the second rank, for which the first one waits."""

    def __call__(self, context, report):
        if context.rank == 1:
            raise WrongSettingsError([WrongSetting(("a", "b"), "is 7: choose 8")], "the file")
        distributed.barrier()


@dataclass(frozen=True)
class Alone:
    """Which rank does a part that needs no other."""

    def __call__(self, context, report):
        return context.rank, os.getpid()


@dataclass(frozen=True)
class DiesOnSecond:
    """Kills the second rank in the middle of another part, when that counts something or before; so many times."""

    part: object
    folder: Path
    times: int = 1
    at_once: bool = False

    def __call__(self, context, report):
        if self.at_once:
            self.die()
        return self.part(context, _Killing(report, self))

    def die(self):
        deaths = len(list(self.folder.glob("died-*")))
        if os.environ["RANK"] == "1" and deaths < self.times:
            (self.folder / f"died-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class _Killing:
    report: object
    dies: DiesOnSecond

    def tokens(self, count):
        self.report.tokens(count)
        self.dies.die()

    def chunk(self, n_sequences, n_tokens):
        self.report.chunk(n_sequences, n_tokens)
        self.dies.die()


@dataclass(frozen=True)
class RunsOut:
    """Lets memory run out on the second rank, the first time that another part measures several sequences."""

    part: object
    folder: Path

    def __call__(self, session, report):
        own, mark = session.engine, self.folder / "ran-out"

        def exhausted(policy, chunk, *others):
            if os.environ["RANK"] == "1" and len(chunk.rows) > 1 and not mark.exists():
                mark.touch()
                raise MemoryError
            return own(policy, chunk, *others)

        session.engine = exhausted
        return self.part(session, report)


@dataclass(frozen=True)
class ChangedExecutor(RankedExecutor):
    """Groups of ranks that do something else in place of some parts; ``changed``: name of the part's class → how."""

    changed: dict

    def counted_apart(self):
        return self

    @contextmanager
    def crew(self, work):
        with super().crew(work) as crew:
            yield _ChangedCrew(crew, self.changed)


@dataclass(frozen=True)
class _ChangedCrew:
    crew: object
    changed: dict

    def work(self, numbers, part, report, what="shard"):
        def changed(number):
            whole = part(number)
            return self.changed.get(type(whole).__name__, lambda same: same)(whole)

        return self.crew.work(numbers, changed, report, what)
