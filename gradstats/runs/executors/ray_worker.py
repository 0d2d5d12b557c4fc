"""What happens in a worker of ray: parts arrive pickled, outcomes leave pickled, progress goes to a mailbox.

Arguments and results are pickled here rather than by ray, whose arrays are read-only views of a shared store.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gradstats.runs.executors.local import processor_seconds
from gradstats.system.user_code import look_in, search_folders

if TYPE_CHECKING:
    from gradstats.runs.executors.local import Part, Work

# Seconds between two messages about the progress of a part.
_BETWEEN_MESSAGES = 0.5
_CATEGORIES = (UserWarning, RuntimeWarning)


@runtime_checkable
class Method(Protocol):
    """A method of an actor."""

    @property
    def remote(self) -> Callable[..., object]:
        """Call it, without waiting for it."""
        ...


@runtime_checkable
class MailboxHandle(Protocol):
    """A handle of the actor that is a :class:`Mailbox`."""

    @property
    def put(self) -> Method:
        """See :meth:`Mailbox.put`."""
        ...


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker takes over from the process that started the run."""

    folder: str  # the working directory, which relative paths of an experiment refer to
    paths: list[str]  # where modules are searched for
    code_folders: list[Path]
    threads: int
    without_gpu: bool

    @classmethod
    def here(cls, threads: int, *, without_gpu: bool) -> WorkerEnvironment:
        """Return those of this process."""
        paths = [os.path.abspath(entry) for entry in sys.path]
        return cls(os.getcwd(), list(dict.fromkeys(paths)), search_folders(), threads, without_gpu)

    def take_on(self) -> None:
        """Let this process be as the one that started the run, before it imports torch."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        sys.path += [path for path in self.paths if path not in sys.path and os.path.exists(path)]
        look_in(self.code_folders)
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        if self.without_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def limit_threads(self) -> None:
        """Set the number of threads once more, where a library had read it before."""
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.threads)


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    pickled: bytes  # the value, or the error
    failed: bool
    remarks: list[tuple[bool, str]]  # the warnings: whether each is a RuntimeWarning, and its sentence
    steps: int  # sequences that the part counted as finished
    tokens: int  # tokens that it counted as processed
    loading: float  # processor seconds, of all threads, in which the worker loaded what its parts need
    processor_seconds: float  # those of the part
    host: str


class Mailbox:
    """An actor that holds the newest progress of each part until the driver takes it."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int]] = {}

    def put(self, key: int, steps: int, tokens: int) -> None:
        """Replace the progress of a part."""
        self._counts[key] = (steps, tokens)

    def take(self) -> dict[int, tuple[int, int]]:
        """Return the progress of the parts that have reported since the last call."""
        counts, self._counts = self._counts, {}
        return counts


class MailedReport:
    """Counts the progress of a part, and sends it at most twice a second."""

    def __init__(self, key: int, mailbox: MailboxHandle) -> None:
        self._key, self._mailbox = key, mailbox
        self._sent = time.monotonic()
        self.n_steps, self.n_tokens = 0, 0

    def tokens(self, count: int) -> None:
        """Count tokens as processed."""
        self.chunk(0, count)

    def chunk(self, n_sequences: int, n_tokens: int) -> None:
        """Count sequences as finished, and their tokens as processed."""
        self.n_steps += n_sequences
        self.n_tokens += n_tokens
        now = time.monotonic()
        if now - self._sent >= _BETWEEN_MESSAGES:
            self._sent = now
            self._mailbox.put.remote(self._key, self.n_steps, self.n_tokens)


class ShardWorker:
    """An actor that does parts; it loads what they need when the first arrives."""

    def __init__(self, work: bytes, surroundings: WorkerEnvironment) -> None:
        self._pickled, self._surroundings = work, surroundings
        self._context: Any = None
        self._opened = False

    def ready(self) -> None:
        """Return when the worker has started, or has been started again."""

    def do(self, part: bytes, key: int, mailbox: MailboxHandle) -> Outcome:
        """Do a part."""
        began = loaded = processor_seconds(self._context)
        report = MailedReport(key, mailbox)
        failed = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._open()
                loaded = processor_seconds(self._context)
                done: Part[Any, object] = pickle.loads(part)
                pickled = pickle.dumps(done(self._context, report), protocol=5)
            except (Exception, SystemExit) as error:  # sys.exit in a user's function ends the part, not the worker
                failed, pickled = True, pickled_error(error)
        return Outcome(
            pickled,
            failed,
            remarks_among(caught),
            report.n_steps,
            report.n_tokens,
            loaded - began,
            processor_seconds(self._context) - loaded,
            socket.gethostname(),
        )

    def _open(self) -> None:
        if self._opened:
            return
        self._surroundings.take_on()
        work: Work[object] = pickle.loads(self._pickled)
        self._surroundings.limit_threads()
        self._context = work.open()
        self._surroundings.limit_threads()
        self._opened = True


def remarks_among(caught: list[warnings.WarningMessage]) -> list[tuple[bool, str]]:
    """Return the warnings of a worker that its user is to see: whether each is a RuntimeWarning, and its sentence."""
    return [
        (issubclass(item.category, RuntimeWarning), str(item.message))
        for item in caught
        if item.category in _CATEGORIES
    ]


def pickled_error(error: BaseException) -> bytes:
    """Pickle an error so that it arrives with its type and message, whatever its constructor takes.

    The traceback in the worker is added as a note.
    """
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    for form in (error, _Bare(type(error), error.args, dict(vars(error)))):
        try:
            pickled = pickle.dumps(form)
            if isinstance(error_of(pickled), type(error)):
                return pickled
        except Exception:  # of whatever the error holds
            continue
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def error_of(pickled: bytes) -> BaseException:
    """Return a pickled error."""
    error = pickle.loads(pickled)
    return error.whole() if isinstance(error, _Bare) else error


@dataclass(frozen=True)
class _Bare:
    """An error without its constructor."""

    kind: type[BaseException]
    args: tuple[object, ...]
    entries: dict[str, object]

    def whole(self) -> BaseException:
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update(self.entries)
        return error
