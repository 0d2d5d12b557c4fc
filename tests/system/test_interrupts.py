"""Ctrl-C between two shards."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from gradstats.system.progress import finishing_current_shard


@pytest.fixture(autouse=True)
def ctrl_c_counts():
    """In background jobs a shell lets processes ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_first_ctrl_c_waits_and_a_second_stops_at_once():
    messages: list[str] = []
    finished = []

    def pressed(times):
        with finishing_current_shard(messages.append) as interrupt:
            interrupt.stop_if_asked()
            assert not interrupt.asked
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            assert interrupt.asked
            finished.append("shard")
            interrupt.stop_if_asked()

    with pytest.raises(KeyboardInterrupt):
        pressed(1)
    assert finished == ["shard"]
    assert messages == ["stopping when the current shard is finished; Ctrl-C again stops immediately and loses it"]
    with pytest.raises(KeyboardInterrupt):
        pressed(2)
    assert finished == ["shard"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_ctrl_c_nothing_stops_and_other_threads_are_left_alone():
    messages: list[str] = []
    with finishing_current_shard(messages.append) as interrupt:
        interrupt.stop_if_asked()
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def elsewhere():
        with finishing_current_shard(messages.append) as interrupt:
            interrupt.stop_if_asked()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
    assert messages == []
