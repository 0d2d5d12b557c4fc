"""Ctrl-C between two shards instead of inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def finishing_current_shard(notify: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Let a first Ctrl-C wait for the current shard, and a second one stop immediately, while the context is open.

    Outside the main thread, where signals cannot be caught, Ctrl-C has its usual effect.

    Args:
        notify: called with a sentence at the first Ctrl-C.

    Yields:
        A function to call when a shard is finished; it raises KeyboardInterrupt if Ctrl-C was pressed in the meantime.
    """
    asked = False

    def first(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, previous)
        notify("stopping when the current shard is finished; Ctrl-C again stops immediately and loses it")

    def stop_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield stop_if_asked
        return
    previous = signal.signal(signal.SIGINT, first)
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, previous)
