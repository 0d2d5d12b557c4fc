"""One writer at a time: a lock file in the folder, which names the host, the process and when it started.

Several processes may declare themselves parts of one run. Each then has a lock of its own, which it touches now and
then, and takes the lock of the folder only for the moments in which it writes what the parts share.

``filelock`` does not serve here: it leaves its file behind, and the holder cannot write who it is into the file that it
locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from gradstats.system.files import naming_full_disk

#: The name of the lock file.
LOCK = ".lock"
#: Pattern of the names of the locks of parts, and what they begin with.
_PART_LOCKS, PART = ".part-*-of-*.lock", ".part-"
# Seconds between two touches of a part's lock; after how many without one a part of another host counts as dead; how
# long a part waits while another writes what they share.
_BETWEEN_TOUCHES, _LONGEST_SILENCE, _PATIENCE = 30.0, 600.0, 3600.0


class LockedError(RuntimeError):
    """Another process is writing to a folder."""


@contextmanager
def only_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Prevent other processes of this program from writing to a folder while the context is open.

    The operating system releases the lock when its process ends, for whatever reason: the lock file of a killed process
    is recognised and taken over. Locks of other hosts cannot be checked and are respected.
    """
    with _held(Path(folder) / LOCK):
        for lock in sorted(Path(folder).glob(_PART_LOCKS)):
            if is_running(lock):
                who = _who(_read_holder(lock))
                raise LockedError(
                    f"a part of {folder} is being made ({who}): wait until all parts have ended; if it no longer runs, "
                    f"remove {lock}"
                )
            lock.unlink(missing_ok=True)
        yield


@contextmanager
def part_writer(folder: str | os.PathLike[str], number: int, n_parts: int) -> Iterator[None]:
    """Let other parts of a run write to a folder, but no process that works on all of it, while the context is open.

    The lock that a killed process of the same part left is taken over, also on another host: launchers start a part
    once.
    """
    folder = Path(folder)
    lock = part_lock(folder, number, n_parts)
    with ExitStack() as held:
        with part_alone(folder):
            for other in folder.glob(_PART_LOCKS):
                if not other.name.endswith(f"-of-{n_parts}.lock") and is_running(other):
                    who = _who(_read_holder(other))
                    raise LockedError(
                        f"{folder} is being made in another number of parts ({other.name}, {who}): give every process "
                        "the same number"
                    )
            # Another part that looks whether this one is running holds the lock for a moment.
            held.enter_context(_waiting(lambda: _held(lock, of_any_host=True), lambda: True, 1.0))
        ended = threading.Event()
        touching = threading.Thread(target=_touch_until, args=(lock, ended), daemon=True)
        touching.start()
        try:
            yield
        finally:
            ended.set()
            touching.join()


@contextmanager
def part_alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Write what the parts of a run share: other parts wait, while the context is open."""
    path = Path(folder) / LOCK

    def is_brief() -> bool:
        holder = _read_holder(path)
        return bool(holder.get("briefly", not holder))  # nothing is said while it is being written

    try:
        held = _waiting(lambda: _held(path, briefly=True), is_brief, _PATIENCE)
    except LockedError:
        if not is_brief() or _read_holder(path).get("host") == socket.gethostname():
            raise
        path.unlink(missing_ok=True)  # its host died in that moment
        held = _waiting(lambda: _held(path, briefly=True), is_brief, _PATIENCE)
    with held:
        yield


def _waiting(hold: Callable[[], AbstractContextManager[None]], while_it: Callable[[], bool], most: float) -> ExitStack:
    """Hold a lock as soon as it is free, if that is within ``most`` seconds and as long as it is worth waiting."""
    end = time.monotonic() + most
    while True:
        with ExitStack() as held:
            try:
                held.enter_context(hold())
                return held.pop_all()
            except LockedError:
                if not while_it() or time.monotonic() > end:
                    raise
        time.sleep(0.05)


def part_lock(folder: Path, number: int, n_parts: int) -> Path:
    """Return the lock of a part of a run."""
    return folder / f"{PART}{number}-of-{n_parts}.lock"


def is_running(lock: Path) -> bool:
    """Return whether a process holds the lock of a part; one of another host, whether it was touched lately."""
    try:
        with lock.open("r+b", buffering=0) as file:
            if _holder(file).get("host", socket.gethostname()) == socket.gethostname():
                return not _try_lock(file)
        return _now_of(lock) - lock.stat().st_mtime < _LONGEST_SILENCE
    except FileNotFoundError:
        return False


def _now_of(lock: Path) -> float:
    """Return the time by the clock of the file system that a lock is on."""
    probe = lock.with_name(f".{os.getpid()}-{threading.get_ident()}.clock.partial")
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _touch_until(lock: Path, ended: threading.Event) -> None:
    while not ended.wait(_BETWEEN_TOUCHES):
        with suppress(OSError):
            os.utime(lock)


@contextmanager
def _held(path: Path, **options: bool) -> Iterator[None]:
    file = _acquired(path, **options)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is freed: no one else can hold it now
        file.close()


def _acquired(path: Path, *, of_any_host: bool = False, briefly: bool = False) -> BinaryIO:
    """Return the open lock file, held by this process."""
    while True:
        if path.is_dir() and not path.is_symlink():
            raise LockedError(f"{path} is a folder, but the lock file of {path.parent} belongs there: remove it")
        with naming_full_disk(path):
            descriptor = _descriptor(path)
        file = os.fdopen(descriptor, "r+b", buffering=0)  # unbuffered: closing must not fail for what is not written
        try:
            holds = _try_lock(file)
            holder = _holder(file)
            foreign = holder.get("host", socket.gethostname()) != socket.gethostname()
            if not holds or (foreign and not of_any_host):
                raise LockedError(_sentence(path, holder, running=not holds))
            if _same_file(file, path):  # else its holder removed it meanwhile, and someone may have made another
                now = datetime.now(UTC).isoformat(timespec="seconds")
                about = {"host": socket.gethostname(), "pid": os.getpid(), "started": now}
                file.seek(0)
                file.truncate()
                with naming_full_disk(path):
                    file.write(json.dumps(about | ({"briefly": True} if briefly else {})).encode())
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _descriptor(path: Path) -> int:
    """Open or create the lock file; a link is not followed, since the file that it leads to would be overwritten."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PermissionError(
                f"{path.parent} cannot be written to ({error.strerror}): choose another place with --out, or make it "
                "writable"
            ) from error
        if error.errno not in (errno.ELOOP, errno.EMLINK):  # the second on FreeBSD
            raise
        raise LockedError(
            f"{path} is a symbolic link, but the lock file of {path.parent} belongs there: remove it"
        ) from error


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: BinaryIO) -> dict[str, object]:
    """Read what a lock file says; nothing where its writer was killed before it had written."""
    file.seek(0)
    try:
        holder = json.loads(file.read(10_000))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _same_file(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _read_holder(path: Path) -> dict[str, object]:
    """Read what a lock file says; nothing where it was removed meanwhile."""
    try:
        with path.open("rb") as file:
            return _holder(file)
    except FileNotFoundError:
        return {}


def _who(holder: dict[str, object]) -> str:
    host, pid, started = (holder.get(name, "unknown") for name in ("host", "pid", "started"))
    return f"process {pid} on {host}, since {started}"


def _sentence(path: Path, holder: dict[str, object], running: bool) -> str:
    who = _who(holder)
    if running:
        return f"another process is working on {path.parent} ({who}): wait until it ends, or choose another folder"
    return f"{path.parent} is locked by another host ({who}): wait until it ends; if it no longer runs, remove {path}"
