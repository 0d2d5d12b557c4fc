"""The loop of every process of a run: claim a shard that is missing, make it, save it, until none is missing.

A claim is a file beside the shard with a lock that the system releases when its process ends. Its creation lets the
process see which shards are there also on NFS, which remembers what a folder held before. The file says how far the
shard has come, from which every process shows the progress of all.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from gradstats.runs.ranks import agreed, is_first
from gradstats.system.lock import TURN, Company, HeldError, claimed, holder_of, together, turn, write_into
from gradstats.system.progress import ProgressReport, finishing_current_shard, progress_bar
from gradstats.system.shards import Shards

Value = TypeVar("Value")

#: Seconds between two looks at what the others do, and between two messages about what this process does.
BETWEEN_LOOKS = 0.5
_WAIT, _STOP, _DONE = -1, -2, -3


@dataclass
class Spent:
    """What this process has done for a run."""

    n_shards: int = 0
    loading: float = 0.0  # processor seconds, of all threads, in which it loaded what the shards need
    shards: float = 0.0  # processor seconds of the shards


@dataclass
class Board:
    """Which shards of a step are missing, and what all processes have done of them; counted on a progress bar."""

    shards: Shards[Any]
    missing: dict[int, int]  # shard → how many steps of the bar it is, of those that nobody has made yet
    report: ProgressReport
    is_made: Callable[[int], bool]
    when_made: Callable[[int], object] = lambda number: None
    _counted: dict[int, tuple[int, int]] = field(default_factory=dict)  # shard → steps and tokens that the bar shows
    _looked: float = field(default_factory=time.monotonic)

    def claim_of(self, number: int) -> Path:
        """Return the file that claims a shard; what a killed process leaves is removed as other partial files are."""
        return self.shards.folder / f".shard-{number:05d}.claim.partial"

    def take(self, held: ExitStack, files: list[BinaryIO]) -> int:
        """Claim the first missing shard that nobody makes, as long as the stack is open, and add its file."""
        for number in list(self.missing):
            if self.is_made(number):
                self.made(number)
                continue
            with ExitStack() as claim:
                file = claim.enter_context(claimed(self.claim_of(number)))
                if file is not None and self.is_made(number):  # by the process that held the claim before
                    self.made(number)
                elif file is not None:
                    held.push(claim.pop_all())
                    files.append(file)
                    return number
        return _WAIT if self.missing else _DONE

    def made(self, number: int, n_tokens: int = 0) -> None:
        """Count a shard as made, by whichever process."""
        self._count(number, self.missing.pop(number), n_tokens)
        self.when_made(number)

    def look_now_and_then(self) -> bool:
        """Show what all processes have done, unless that was shown just before; return whether it was done now."""
        if due := time.monotonic() - self._looked >= BETWEEN_LOOKS:
            self._looked = time.monotonic()
            self.look()
        return due

    def look(self) -> None:
        """Show what all processes have done."""
        there = set(os.listdir(self.shards.folder)) if self.shards.folder.is_dir() else set()
        for number in list(self.missing):
            if self.claim_of(number).name in there:
                said = holder_of(self.claim_of(number))
                if "steps" in said:
                    self._count(number, int(str(said["steps"])), int(str(said["tokens"])))
            elif self.shards.path(number).name in there and self.is_made(number):
                self.made(number)

    def _count(self, number: int, steps: int, tokens: int) -> None:
        """Advance the bar; back where a shard is begun again."""
        shown, seen = self._counted.get(number, (0, 0))
        if steps != shown:
            self.report.advance(steps - shown)
        if tokens > seen:
            self.report.tokens(tokens - seen)
        self._counted[number] = (steps, max(tokens, seen))


@dataclass
class Claim:
    """A shard that this process makes, which counts how far it is: a :class:`gradstats.system.progress.Report`."""

    number: int
    _board: Board
    _file: BinaryIO | None = None  # None in all ranks but the first
    n_steps: int = 0
    n_tokens: int = 0

    def tokens(self, count: int) -> None:
        """Count tokens as processed."""
        self.chunk(0, count)

    def chunk(self, n_sequences: int, n_tokens: int) -> None:
        """Count sequences as finished, and their tokens as processed."""
        self.n_steps += n_sequences
        self.n_tokens += n_tokens
        if self._file is not None and self._board.look_now_and_then():
            about = {"host": socket.gethostname(), "pid": os.getpid(), "steps": self.n_steps, "tokens": self.n_tokens}
            with suppress(OSError):  # a full disk, which the shard itself will report
                write_into(self._file, about, self._board.claim_of(self.number))


@contextmanager
def joined(folder: Path, begin: Callable[[Company], Value]) -> Iterator[tuple[Company, Value]]:
    """Work on a folder together with others, as soon as no process works on all of it.

    ``begin`` is called before any other process can begin.
    """
    waited_for: HeldError | None = None
    with ExitStack() as held:
        while True:
            try:
                with ExitStack() as opened, noted_turn(folder):
                    company = opened.enter_context(together(folder))
                    company.waited_for = waited_for
                    begun = begin(company)
                    company.share()
                    held.push(opened.pop_all())
                break
            except HeldError as error:
                if not error.by_company:
                    raise
                if waited_for is None:
                    _say_waiting(error)
                waited_for = error
                time.sleep(BETWEEN_LOOKS)
        yield company, begun


@contextmanager
def noted_turn(folder: Path) -> Iterator[None]:
    """Write what the processes that work on a folder share, one after another; a note says where one takes long."""
    path = folder / TURN
    note = threading.Timer(4 * BETWEEN_LOOKS, lambda: _say_waiting(HeldError(path, holder_of(path))))
    note.daemon = True
    note.start()
    with ExitStack() as held:
        try:
            held.enter_context(turn(folder))
        finally:
            note.cancel()
        yield


def _say_waiting(error: HeldError) -> None:
    with progress_bar("waiting", 1, shown=False) as report:
        report.say(f"waiting, since {str(error).rpartition(': ')[0]}")


def make_missing(board: Board, spent: Spent, make: Callable[[Claim], object], what: str = "shard") -> None:
    """Claim the missing shards, one at a time, and make and save each, until none is missing.

    Shards that other processes make are waited for, and made here where their process ends without them. A first
    Ctrl-C lets the current shard finish before KeyboardInterrupt is raised; a second one raises it immediately.
    """
    with finishing_current_shard(board.report.say, what) as interrupt:
        while True:
            with ExitStack() as held:
                file: list[BinaryIO] = []

                def take(held: ExitStack = held, file: list[BinaryIO] = file) -> int:
                    return _STOP if interrupt.asked else board.take(held, file)

                number = agreed(take)
                if number >= 0:
                    start = time.process_time()
                    claim = Claim(number, board, file[0] if file else None)
                    make(claim)
                    spent.n_shards += 1
                    spent.shards += time.process_time() - start
                    if is_first():
                        board.made(number, claim.n_tokens)
            if number == _STOP:
                raise KeyboardInterrupt
            if number == _DONE:
                return
            if number == _WAIT:
                time.sleep(BETWEEN_LOOKS)
                if is_first():
                    board.look_now_and_then()
