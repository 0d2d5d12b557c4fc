"""The other side of an actor, without ray: errors, surroundings, progress."""

import os
import pickle
import sys
from types import SimpleNamespace

import pytest
from parts_of_work import Fails, Tens, Times

from gradstats.config.validation import WrongSetting, WrongSettingsError
from gradstats.runs.executors import ray_worker
from gradstats.runs.executors.ray_worker import (
    Mailbox,
    MailedReport,
    ShardWorker,
    WorkerEnvironment,
    error_of,
    pickled_error,
)
from gradstats.system.user_code import code_beside, search_folders


@pytest.fixture
def mailbox():
    sent = []
    return SimpleNamespace(put=SimpleNamespace(remote=lambda *message: sent.append(message)), sent=sent)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.setattr(WorkerEnvironment, "take_on", lambda self: None)
    return ShardWorker(pickle.dumps(Tens(tmp_path)), WorkerEnvironment.here(1, without_gpu=True))


def test_a_worker_loads_once_and_returns_values_errors_and_warnings(worker, mailbox, tmp_path):
    first = worker.do(pickle.dumps(Times(4)), 1, mailbox)
    assert (first.failed, pickle.loads(first.pickled)) == (False, 40)
    assert first.remarks == [(False, "opened")]
    assert (first.steps, first.tokens) == (2, 7)
    assert first.processor_seconds >= 0
    failed = worker.do(pickle.dumps(Fails(1)), 2, mailbox)
    assert failed.failed
    assert type(error_of(failed.pickled)) is WrongSettingsError
    assert worker.do(b"not a part", 3, mailbox).failed
    assert [path.name for path in tmp_path.iterdir()] == [f"opened-{os.getpid()}"]


class Unpicklable(RuntimeError):
    def __init__(self, message):
        super().__init__(message)
        self.handle = sys.stdout


@pytest.mark.parametrize(
    "error",
    [
        KeyError("name"),
        OSError(28, "No space left", "file"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        WrongSettingsError([WrongSetting(("a",), "is 7: choose 8")], "the file"),
    ],
)
def test_an_error_keeps_its_type_and_message(error):
    again = error_of(pickled_error(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert "in a worker:" in again.__notes__[-1]


def test_an_error_that_cannot_travel_is_named():
    again = error_of(pickled_error(Unpicklable("the pipe is closed")))
    assert type(again) is RuntimeError
    assert str(again) == "Unpicklable: the pipe is closed"


def test_a_worker_finds_the_files_and_modules_of_the_process_that_started_the_run(tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    monkeypatch.syspath_prepend(str(tmp_path))
    with code_beside(tmp_path):
        surroundings = WorkerEnvironment.here(3, without_gpu=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.setattr("gradstats.system.user_code._folders", [])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    surroundings.take_on()
    assert os.getcwd() == str(there)
    assert str(tmp_path) in sys.path
    assert search_folders() == [tmp_path, there]
    assert (os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("3", "")


def test_progress_is_sent_now_and_then_and_only_the_newest_is_kept(mailbox, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ray_worker.time, "monotonic", lambda: now[0])
    report = MailedReport(5, mailbox)
    for _ in range(4):
        report.chunk(1, 10)
        report.tokens(1)
        now[0] += 0.3
    assert mailbox.sent == [(5, 3, 32)]
    assert (report.n_steps, report.n_tokens) == (4, 44)
    box = Mailbox()
    box.put(5, 1, 10)
    box.put(5, 3, 30)
    box.put(6, 1, 1)
    assert box.take() == {5: (3, 30), 6: (1, 1)}
    assert box.take() == {}
