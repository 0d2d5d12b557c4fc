"""Ctrl-C between two shards."""

import os
import signal
import threading

import numpy as np
import pytest
from rich.progress import Progress

from gradstats.system.progress import ProgressReport, finishing_current_shard


@pytest.mark.usefixtures("ctrl_c_counts")
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


@pytest.mark.usefixtures("ctrl_c_counts")
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


def test_the_bar_shows_speed_success_and_length(monkeypatch):
    clock = {"now": 100.0}
    monkeypatch.setattr("gradstats.system.progress.time.monotonic", lambda: clock["now"])
    bar = Progress(disable=True)
    report = ProgressReport(bar, "sampling", 10, 2)
    report.completions(np.array([1.0, 0.0]), np.array([10, 20]), before=True)
    assert bar.tasks[0].completed == 2
    assert report.note() == "success 50%, mean length 15"
    clock["now"] = 110.0
    report.tokens(2500)
    report.completions(np.array([1.0, 1.0]), np.array([30, 40]))
    assert bar.tasks[0].completed == 4
    assert report.note() == "250 tokens/s, success 75%, mean length 25"
    report.completions(np.array([0.25]), np.array([25]))
    assert report.note() == "250 tokens/s, mean reward 0.65, mean length 25"


def test_a_chunk_moves_the_bar_and_its_speed(monkeypatch):
    monkeypatch.setattr("gradstats.system.progress.time.monotonic", iter([0.0, 2.0, 2.0]).__next__)
    bar = Progress(disable=True)
    report = ProgressReport(bar, "measuring", 10, 0)
    report.chunk(3, 500)
    assert bar.tasks[0].completed == 3
    assert report.note() == "250 tokens/s"


def test_the_step_that_is_named_is_not_counted_yet():
    bar = Progress(disable=True)
    report = ProgressReport(bar, "analysing", 2, 0)
    report.doing("variance")
    assert (bar.tasks[0].completed, bar.tasks[0].fields["note"]) == (0, "variance")
    report.doing("figures")
    assert (bar.tasks[0].completed, bar.tasks[0].fields["note"]) == (1, "figures")
    report.doing("")
    assert bar.tasks[0].finished
