"""Progress bars, and Ctrl-C that waits for the end of the current shard."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, runtime_checkable

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# The time left is extrapolated from this many seconds: shards may take minutes each.
_SPEED_OVER = 1800.0


@runtime_checkable
class Report(Protocol):
    """Where a piece of work counts what it has done so far; a :class:`ProgressReport` is one."""

    def tokens(self, count: int) -> None:
        """Count tokens as processed."""
        ...

    def chunk(self, n_sequences: int, n_tokens: int) -> None:
        """Count sequences as finished, and their tokens as processed."""
        ...


class ProgressReport:
    """Handle of a running progress bar, which shows finished steps, tokens per second and the success rate."""

    def __init__(self, bar: Progress, label: str, total: int, done: int) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total, completed=done, note="")
        self._tokens = 0
        self._start = time.monotonic()
        self._rewards: list[float] = []
        self._lengths: list[float] = []
        self._named = False

    def doing(self, what: str) -> None:
        """Name the step that begins, and count the one named before as finished."""
        self._bar.update(self._task, advance=int(self._named), note=what, refresh=True)
        self._named = True

    def advance(self, steps: int = 1) -> None:
        """Count further steps as finished."""
        self._bar.update(self._task, advance=steps)

    def tokens(self, count: int) -> None:
        """Count tokens as processed; the bar shows tokens per second."""
        self._tokens += count
        self._bar.update(self._task, note=self.note())

    def chunk(self, n_sequences: int, n_tokens: int) -> None:
        """Count sequences that went through the model together as finished, and their tokens as processed."""
        self.advance(n_sequences)
        self.tokens(n_tokens)

    def completions(self, rewards: np.ndarray, lengths: np.ndarray, *, before: bool = False) -> None:
        """Count completions as finished; the bar shows their success rate and mean length."""
        self._rewards += [float(reward) for reward in rewards]
        self._lengths += [float(length) for length in lengths]
        self._bar.update(self._task, advance=0 if before else len(rewards), note=self.note())

    def say(self, sentence: str) -> None:
        """Print a note above the bar."""
        self._bar.console.print(f"[yellow]note:[/] {escape(sentence)}", highlight=False, soft_wrap=True)

    def note(self) -> str:
        """Tokens per second, and the success rate (the mean reward, unless all are 0 or 1) of finished completions."""
        words = []
        if self._tokens:
            speed = self._tokens / max(time.monotonic() - self._start, 1e-9)
            words.append(f"{speed:,.0f} tokens/s")
        if self._rewards:
            mean = float(np.mean(self._rewards))
            binary = set(self._rewards) <= {0.0, 1.0}
            words.append(f"success {mean:.0%}" if binary else f"mean reward {mean:.2f}")
            words.append(f"mean length {np.mean(self._lengths):.0f}")
        return ", ".join(words)


@contextmanager
def progress_bar(label: str, total: int, *, done: int = 0, shown: bool = True) -> Iterator[ProgressReport]:
    """Show a progress bar on standard error, with the time left and tokens per second."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown, speed_estimate_period=_SPEED_OVER) as bar:
        yield ProgressReport(bar, label, total, done)


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed."""

    asked: bool = False

    def stop_if_asked(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed; to be called when a shard is finished."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def finishing_current_shard(notify: Callable[[str], None], what: str = "shard") -> Iterator[Interrupt]:
    """Let a first Ctrl-C wait for the current shard, and a second one stop immediately, while the context is open.

    Outside the main thread, where signals cannot be caught, Ctrl-C has its usual effect.
    """
    interrupt = Interrupt()

    def first(_signal: int, _frame: FrameType | None) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, previous)
        notify(f"stopping when the current {what} is finished; Ctrl-C again stops immediately and loses it")

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    previous = signal.signal(signal.SIGINT, first)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
