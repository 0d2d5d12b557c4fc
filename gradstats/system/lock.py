"""Locks of a folder: one writer at a time, or several processes that work on it together and claim what they make.

A lock is a file that names the host, the process and when it started, with an advisory lock on it (``flock``, which
NFS passes on between hosts). The operating system releases that when its process ends, for whatever reason, so that no
clock and no time-out is involved: a file that a killed process left is taken over.

``filelock`` does not serve here: it leaves its file behind, and the holder cannot write who it is, or how far it has
come, into the file that it locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from gradstats.system.files import naming_full_disk

#: The name of the lock file.
LOCK = ".lock"
#: The name of the lock file of those who work on a folder together, which one of them holds to write what they share.
TURN = ".turn"


class LockedError(RuntimeError):
    """Another process is writing to a folder."""


class HeldError(LockedError):
    """A process that runs holds a lock; ``by_company``: it works on the folder together with others."""

    def __init__(self, path: Path, holder: dict[str, object], since: int = 0) -> None:
        super().__init__(_sentence(path, holder, running=True))
        self.by_company = not holder or "shared" in holder  # empty while it is being written
        self.since = since  # when the holder wrote that it does, in nanoseconds, by the clock of the file system


@contextmanager
def only_writer(folder: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Prevent other processes of this program from writing to a folder while the context is open.

    The lock file of a killed process of this host is taken over; one that another host left is respected, since not
    every file system passes locks on. ``wait``: for the processes that are writing to it, instead of an error.
    """
    path = Path(folder) / LOCK
    file = _acquired(path, wait=wait)
    try:
        yield
    finally:
        _release(file, path)


@contextmanager
def turn(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Write what the processes that work on a folder share, one after another."""
    path = Path(folder) / TURN
    file = _acquired(path, of_any_host=True, wait=True)
    try:
        yield
    finally:
        _release(file, path)


@contextmanager
def claimed(path: Path) -> Iterator[BinaryIO | None]:
    """Claim what a file stands for, and yield the file; None where another process has claimed it."""
    try:
        file = _acquired(path, of_any_host=True)
    except HeldError:
        yield None
        return
    try:
        yield file
    finally:
        _release(file, path)


@dataclass
class Company:
    """The processes that work on a folder together, of which this is one."""

    path: Path  # of the lock file
    alone: bool  # whether no other process works on the folder
    _file: BinaryIO
    waited_for: HeldError | None = None  # which process had the folder alone, where this one had to wait

    def was_written(self, path: Path) -> bool:
        """Whether the process that this one waited for wrote a file, while it had the folder alone."""
        return self.waited_for is not None and path.exists() and path.stat().st_mtime_ns >= self.waited_for.since

    def share(self) -> None:
        """Let others work on the folder, which until then the first process has alone."""
        if self.alone and not _try_lock(self._file, shared=True):
            error = _held(self._file, self.path)
            self._file.close()  # one that waited has got it, whose file it is now
            raise error
        self.alone = False

    def becomes_only(self) -> bool:
        """Whether no other process works on the folder, which is from now on as by :func:`only_writer`.

        Of those who ask, whether they go on or end by an error, the last one is: the others no longer belong to it.
        """
        with turn(self.path.parent):
            return self._is_last()

    def _is_last(self) -> bool:
        if not self.alone:
            self._file.close()  # first: NFS keeps a lock that cannot be raised, and none would be the last
            with suppress(HeldError, FileNotFoundError):  # the latter: of one that has all of the folder, and has ended
                self._file, self.alone = _acquired(self.path, of_company=True, create=False), True
        return self.alone


@contextmanager
def together(folder: str | os.PathLike[str]) -> Iterator[Company]:
    """Work on a folder together with others who do, but with no process that works on all of it.

    To be entered in a :func:`turn`, which ends after :meth:`Company.share`.
    """
    path = Path(folder) / LOCK
    try:
        company = Company(path, True, _acquired(path, of_company=True))
    except HeldError:
        company = Company(path, False, _acquired(path, of_company=True, shared=True))
    try:
        yield company
    finally:
        # Removes what a killed process left of a turn, too. Whoever has the turn belongs to the company, or begins.
        with suppress(LockedError, OSError), claimed(path.parent / TURN) as free:
            if not company._file.closed and (company.alone or (free is not None and company._is_last())):
                _release(company._file, path)
        company._file.close()


def holder_of(path: Path) -> dict[str, object]:
    """Return what a lock file says; nothing where there is none, or it is being written."""
    try:
        with path.open("rb") as file:
            return _holder(file)
    except OSError:
        return {}


def _release(file: BinaryIO, path: Path) -> None:
    path.unlink(missing_ok=True)  # before it is freed: no one else can hold it now
    file.close()


def _acquired(
    path: Path,
    *,
    of_any_host: bool = False,
    of_company: bool = False,
    shared: bool = False,
    wait: bool = False,
    create: bool = True,
) -> BinaryIO:
    """Return the open lock file, held by this process; ``of_company``: as one of several, ``shared`` with them."""
    while True:
        if path.is_dir() and not path.is_symlink():
            raise LockedError(f"{path} is a folder, but the lock file of {path.parent} belongs there: remove it")
        with naming_full_disk(path):
            descriptor = _descriptor(path, create)
        file = os.fdopen(descriptor, "r+b", buffering=0)  # unbuffered: closing must not fail for what is not written
        try:
            holds = _try_lock(file, shared=shared, wait=wait)
            if holds and not _same_file(file, path):  # its holder removed it, and someone may have made another
                file.close()
                continue
            if not holds:
                raise _held(file, path)
            holder = _holder(file)
            foreign = holder.get("host", socket.gethostname()) != socket.gethostname() and not holder.get("shared")
            if foreign and not of_any_host:
                raise LockedError(_sentence(path, holder, running=False))
            _write_holder(file, path, **({"shared": True} if of_company else {}))
        except BaseException:
            file.close()
            raise
        return file


def _held(file: BinaryIO, path: Path) -> HeldError:
    return HeldError(path, _holder(file), os.fstat(file.fileno()).st_mtime_ns)


def _write_holder(file: BinaryIO, path: Path, **more: object) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_into(file, {"host": socket.gethostname(), "pid": os.getpid(), "started": now, **more}, path)


def write_into(file: BinaryIO, about: dict[str, object], path: Path) -> None:
    """Replace what the file of a lock says."""
    file.seek(0)
    file.truncate()
    with naming_full_disk(path):
        file.write(json.dumps(about).encode())


def _descriptor(path: Path, create: bool) -> int:
    """Open, or create, the lock file; a link is not followed, since the file that it leads to would be overwritten."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o644)
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


def _try_lock(file: BinaryIO, *, shared: bool = False, wait: bool = False) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
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


def _who(holder: dict[str, object]) -> str:
    host, pid, started = (holder.get(name, "unknown") for name in ("host", "pid", "started"))
    return f"process {pid} on {host}, since {started}"


def _sentence(path: Path, holder: dict[str, object], running: bool) -> str:
    who = _who(holder)
    if running:
        return f"another process is working on {path.parent} ({who}): wait until it ends, or choose another folder"
    return f"{path.parent} is locked by another host ({who}): wait until it ends; if it no longer runs, remove {path}"


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # of another user
    return True
