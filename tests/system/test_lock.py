"""One writer at a time: a living process is respected, a dead one is not."""

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gradstats.system import lock
from gradstats.system.lock import LOCK, TURN, Company, HeldError, LockedError, claimed, only_writer, together, turn

_HOLD = """
import sys, time
from gradstats.system.lock import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def enter(context):
    with context:
        pass


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_writer_is_refused_by_name_and_a_killed_one_is_not_waited_for(tmp_path, holder):
    with pytest.raises(LockedError, match=rf"another process is working on .* \(process {holder.pid} on .*, since 20"):
        enter(only_writer(tmp_path))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    with only_writer(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_another_host_is_respected(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({"host": "elsewhere", "pid": 7, "started": "2026-01-01"}))
    with pytest.raises(LockedError, match=r"locked by another host \(process 7 on elsewhere, since 2026-01-01\)"):
        enter(only_writer(tmp_path))
    assert (tmp_path / LOCK).exists()


@pytest.mark.parametrize("left", [b"", b'{"host": "a', b"\xff\x00", b"[1]", b'"x"', b"null"])
def test_what_a_writer_killed_while_it_locked_left_behind_is_taken_over(tmp_path, left):
    (tmp_path / LOCK).write_bytes(left)
    enter(only_writer(tmp_path))
    assert not (tmp_path / LOCK).exists()


def test_a_folder_in_the_place_of_the_lock_is_named(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(LockedError, match="is a folder, but the lock file of .* belongs there"):
        enter(only_writer(tmp_path))


def test_the_lock_is_freed_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), only_writer(tmp_path):
        raise ZeroDivisionError
    enter(only_writer(tmp_path))


@pytest.mark.parametrize("target", ["thesis.tex", "folder", "nowhere"])
def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path, target):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "folder").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(tmp_path / target)
    with pytest.raises(LockedError, match=r"\.lock is a symbolic link, but the lock file of .* belongs there: remove"):
        enter(only_writer(run))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (run / LOCK).is_symlink()
    assert not (tmp_path / "nowhere").exists()


class FullDisk(io.FileIO):
    """A file on a disk without space."""

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_and_the_empty_lock_is_taken_over(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", lambda descriptor, mode, buffering: FullDisk(descriptor, mode))
        with pytest.raises(OSError, match=rf"no space is left to write {tmp_path}/\.lock: free some"):
            enter(only_writer(tmp_path))
    with only_writer(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


@contextmanager
def shared(folder):
    with together(folder) as company:
        company.share()
        yield company


def test_processes_work_together_until_the_last_has_the_folder_alone(tmp_path):
    with together(tmp_path) as one:
        assert one.alone
        with pytest.raises(LockedError, match="another process is working on"):  # until the first has begun
            enter(together(tmp_path))
        one.share()
        with together(tmp_path) as other:
            assert not other.alone
            with pytest.raises(LockedError, match="another process is working on"):
                enter(only_writer(tmp_path))
            assert not one.becomes_only()  # it no longer belongs to them
            assert other.becomes_only()
            for entered in (together(tmp_path), only_writer(tmp_path)):
                with pytest.raises(HeldError, match="another process is working on") as raised:
                    enter(entered)
                assert raised.value.by_company
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_end_at_once_one_is_the_last(tmp_path):
    for _ in range(50):
        with shared(tmp_path) as one, shared(tmp_path) as other:
            with ThreadPoolExecutor(2) as pool:
                found = list(pool.map(Company.becomes_only, (one, other)))
            assert sorted(found) == [False, True]


def test_one_that_ends_by_an_error_does_not_keep_another_from_being_the_last(tmp_path, monkeypatch):
    acquired, has_asked, asked = lock._acquired, threading.Event(), []
    with ThreadPoolExecutor(1) as pool, shared(tmp_path) as other:

        def at_once(path, **options):
            if options.get("create", True):
                return acquired(path, **options)
            if asked:
                has_asked.wait(5)
                return acquired(path, **options)
            asked.append(pool.submit(other.becomes_only))
            time.sleep(0.2)
            try:
                return acquired(path, **options)
            finally:
                has_asked.set()

        with shared(tmp_path):
            monkeypatch.setattr(lock, "_acquired", at_once)
        assert asked[0].result()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_that_a_waiting_process_gets_while_it_would_be_shared_is_left_to_it(tmp_path, monkeypatch):
    """The system changes a lock in two steps."""
    flock, waiting = fcntl.flock, (tmp_path / LOCK).open("w+b")

    def in_two_steps(file, how):
        if how == fcntl.LOCK_SH | fcntl.LOCK_NB:
            flock(file, fcntl.LOCK_UN)
            flock(waiting, fcntl.LOCK_EX)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", in_two_steps)
    with waiting, pytest.raises(HeldError):
        enter(shared(tmp_path))
    assert (tmp_path / LOCK).exists()


def test_one_that_ends_leaves_the_turn_of_one_that_begins(tmp_path):
    with turn(tmp_path):
        enter(together(tmp_path))
        assert (tmp_path / TURN).exists()
    (tmp_path / TURN).touch()  # of a process that was killed
    enter(together(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_processes_share_is_written_in_turns(tmp_path):
    order = []

    def write():
        with turn(tmp_path):
            order.append("second")

    thread = threading.Thread(target=write)
    with turn(tmp_path):
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_claim_is_of_one_process_and_ends_with_it(tmp_path, holder):
    with claimed(tmp_path / LOCK) as file:
        assert file is None
    holder.kill()
    holder.wait()
    with claimed(tmp_path / LOCK) as file, claimed(tmp_path / LOCK) as again:
        assert file is not None
        assert again is None
    assert list(tmp_path.iterdir()) == []
