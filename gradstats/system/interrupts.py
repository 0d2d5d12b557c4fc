"""Ctrl-C between two shards instead of inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        asked: set at the first Ctrl-C.
    """

    asked: bool = False

    def stop_if_asked(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed; to be called when a shard is finished."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def finishing_current_shard(notify: Callable[[str], None], what: str = "shard") -> Iterator[Interrupt]:
    """Let a first Ctrl-C wait for the current shard, and a second one stop immediately, while the context is open.

    Outside the main thread, where signals cannot be caught, Ctrl-C has its usual effect.

    Args:
        notify: called with a sentence at the first Ctrl-C.
        what: what is being finished, for that sentence.
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
