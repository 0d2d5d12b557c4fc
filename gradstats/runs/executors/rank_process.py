"""One rank of a group, a process with a pipe to the worker that started it.

It holds its part of the weights, and does what the others do. It ends with the process that started it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gradstats.runs.executors.local import Report
from gradstats.runs.executors.ray_worker import WorkerEnvironment, pickled_error, remarks_among

# Weights are read, and checked, at different speeds.
_LONGEST_WAIT = timedelta(hours=2)


@dataclass(frozen=True)
class RankSetup:
    """What a rank needs to know."""

    work: bytes  # what each rank opens, pickled
    rank: int
    size: int
    store: str  # the file through which they find each other
    surroundings: WorkerEnvironment  # what it takes over from the worker
    # most tokens to measure at once, where memory ran out before; None for that of the settings
    token_budget: int | None


@dataclass(frozen=True)
class Progress:
    """A call of a method of :class:`gradstats.runs.executors.local.Report` by the first rank."""

    method: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """How a part ended."""

    pickled: bytes  # the value of the first rank, None of the others; or the error
    failed: bool = False
    # the warnings of the first rank: whether each is a RuntimeWarning, and its sentence
    remarks: list[tuple[bool, str]] = field(default_factory=list)
    processor_seconds: float = 0.0  # those of the rank, of all threads


@dataclass(frozen=True)
class SentReport:
    """Sends the progress of the first rank; the others do the same."""

    connection: Connection
    rank: int

    def tokens(self, count: int) -> None:
        """Count tokens as processed."""
        self._send(Progress("tokens", (count,)))

    def chunk(self, n_sequences: int, n_tokens: int) -> None:
        """Count sequences as finished, and their tokens as processed."""
        self._send(Progress("chunk", (n_sequences, n_tokens)))

    def _send(self, progress: Progress) -> None:
        if self.rank == 0:
            self.connection.send(progress)


def serve(file: int) -> None:
    """Open the work, and do parts until the pipe is closed."""
    connection = Connection(file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that started the run
    opening: RankSetup = connection.recv()
    threading.Thread(target=_end_with, args=(os.getppid(), Path(opening.store).parent), daemon=True).start()
    report, contexts = SentReport(connection, opening.rank), []
    connection.send(answer(lambda: contexts.append(opened(opening)), opening.rank))
    while True:
        try:
            part = connection.recv_bytes()
        except EOFError:
            return
        connection.send(answer(lambda part=part: done(part, contexts[0], report), opening.rank))


def opened(opening: RankSetup) -> Any:
    """Join the process group and open the work; return its context."""
    opening.surroundings.take_on()
    join(opening.rank, opening.size, opening.store)
    opening.surroundings.limit_threads()
    context = pickle.loads(opening.work).open()
    opening.surroundings.limit_threads()
    if opening.token_budget is not None:
        context.token_budget = opening.token_budget
    return context


def join(rank: int, size: int, store: str) -> None:
    """Join the process group, through a file."""
    import torch
    from torch import distributed

    on_gpus = torch.cuda.is_available()
    if on_gpus and rank < torch.cuda.device_count():
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=_LONGEST_WAIT,
    )


def done(part: bytes, context: Any, report: SentReport) -> object:
    """Do a part; only on the first rank where it makes no pass through the weights, such as a request to a server."""
    if report.rank and not getattr(context, "in_step", True):
        return None
    function: Callable[[Any, Report], object] = pickle.loads(part)
    return function(context, report)


def answer(function: Callable[[], object], rank: int) -> Answer:
    """Return the value of a call, or what it raised; of the first rank with its warnings."""
    failed, start = False, time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function()
            pickled = pickle.dumps(None if rank else value, protocol=5)
        except (Exception, SystemExit) as error:  # sys.exit in a user's function ends the part, not the rank
            failed, pickled = True, pickled_error(error)
    return Answer(pickled, failed, [] if rank else remarks_among(caught), time.process_time() - start)


def _end_with(parent: int, folder: Path) -> None:
    """End this process when its parent has ended, also in the middle of a pass; remove what that leaves in a folder."""
    while os.getppid() == parent:
        time.sleep(1.0)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
