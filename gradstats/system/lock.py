"""One writer at a time: a lock file in the folder, which names the host, the process and when it started."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from gradstats.system.files import naming_full_disk

#: The name of the lock file.
LOCK = ".lock"


class LockedError(RuntimeError):
    """Another process is writing to a folder."""


@contextmanager
def only_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Prevent other processes of this program from writing to a folder while the context is open.

    The operating system releases the lock when its process ends, for whatever reason: the lock file of a killed process
    is recognised and taken over. Locks of other hosts cannot be checked and are respected.

    Args:
        folder: an existing folder.

    Raises:
        LockedError: when another process holds the lock (names its host, process and start), or a folder or a link lies
            in its place.
        OSError: when the lock cannot be written.
    """
    path = Path(folder) / LOCK
    file = _acquired(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is freed: no one else can hold it now
        file.close()


def _acquired(path: Path) -> BinaryIO:
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
            if not holds or holder.get("host", socket.gethostname()) != socket.gethostname():
                raise LockedError(_sentence(path, holder, running=not holds))
            if _same_file(file, path):  # else its holder removed it meanwhile, and someone may have made another
                now = datetime.now(UTC).isoformat(timespec="seconds")
                file.seek(0)
                file.truncate()
                with naming_full_disk(path):
                    file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started": now}).encode())
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


def _sentence(path: Path, holder: dict[str, object], running: bool) -> str:
    host, pid, started = (holder.get(name, "unknown") for name in ("host", "pid", "started"))
    who = f"process {pid} on {host}, since {started}"
    if running:
        return f"another process is working on {path.parent} ({who}): wait until it ends, or choose another folder"
    return f"{path.parent} is locked by another host ({who}): wait until it ends; if it no longer runs, remove {path}"
