"""One progress bar for everything that takes more than a few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressReport:
    """Handle of a running progress bar: finished steps move it, tokens give its speed."""

    def __init__(self, bar: Progress, label: str, total: int, done: int) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total, completed=done, note="")
        self._tokens = 0
        self._start = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count ``steps`` more as finished."""
        self._bar.update(self._task, advance=steps)

    def tokens(self, count: int) -> None:
        """Count tokens that were processed; the bar shows tokens per second."""
        self._tokens += count
        speed = self._tokens / max(time.monotonic() - self._start, 1e-9)
        self._bar.update(self._task, note=f"{speed:,.0f} tokens/s")


@contextmanager
def progress_bar(label: str, total: int, *, done: int = 0, shown: bool = True) -> Iterator[ProgressReport]:
    """A progress bar on standard error, with the time left and tokens per second.

    Args:
        label: what is going on.
        total: number of steps in all.
        done: steps that were finished before.
        shown: False draws nothing.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        yield ProgressReport(bar, label, total, done)
