"""Files that are complete or absent: atomic writing, JSON and CSV, and the digests that reveal a change."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


#: Version of the files of rollouts and measurements; 1 had no checksums.
FORMAT = 2


def digest(data: object) -> str:
    """Return a fingerprint of anything that JSON can hold.

    >>> digest([1, 2]) == digest((1, 2)) != digest([2, 1])
    True
    """
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_sentence(path: str | os.PathLike[str]) -> str:
    """Return a sentence stating that a file has changed since it was written."""
    return (
        f"{os.fspath(path)} has changed since it was written, its checksum does not match: restore it from a copy, or "
        "remove it and repeat the command that wrote it"
    )


def refuse_newer_format(path: str | os.PathLike[str], version: object) -> None:
    """Refuse a file that a later version of this program wrote."""
    text = version.decode("ascii", "replace") if isinstance(version, bytes) else str(version)
    if not text.isdecimal() or int(text) > FORMAT:
        raise ValueError(
            f"{os.fspath(path)} has format {text!r}, and this version of gradstats knows formats up to {FORMAT}: read "
            "it with the version that wrote it, or a newer one"
        )


def remark_on_missing_checksums() -> None:
    """Warn that files of an earlier version hold no checksums."""
    warnings.warn(
        "these files were written by an earlier version, without checksums: damage to them would go unnoticed",
        UserWarning,
        stacklevel=1,
    )


#: How the temporary names of :func:`atomic_path` look.
PARTIAL = ".*.partial"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a rename to a name that something has.
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
# First characters of a cell that spreadsheets treat as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_QUOTED_FORMULA = r"^'(?=[=+\-@\t\r])"
#: Entry of a JSON file that holds the digest of all others.
_CHECKSUM = "checksum"
_SHA256 = "sha256:"
#: What every file that :func:`write_json` wrote contains.
CHECKSUM_MARK = f'"{_CHECKSUM}": "{_SHA256}'.encode()


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, replace_folder: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write a file or a folder to; rename it on success.

    If the process is killed, the machine loses power or the disk is full, ``path`` stays as it was: a reader never
    finds half a file, since everything is on the disk before it is renamed. The temporary name starts with a dot, holds
    the host, the process and a random part, and ends in ``.partial``, so that no reader's pattern matches it and no two
    writers share it. A symbolic link is followed.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir() and not replace_folder:
        raise FileExistsError(f"{path} is a folder and is not replaced: choose another path")
    if path.exists() and not path.is_dir() and not path.is_file():
        raise FileExistsError(f"{path} is a device or a pipe, not a file: choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_of(path)
    old = _partial_of(path)
    there = identity(path)
    named = False
    try:
        with naming_full_disk(path):
            yield partial
            _sync(partial)
            _give_name(partial, path, there, old)
            named = True
            _sync_folder(path.parent)
    finally:
        if old.exists() and not os.path.lexists(path):
            old.rename(path)
        remove_path(partial)
        if named:
            remove_path(old)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """State which file cannot be written, and the remedy, where no space is left on the disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        full = OSError(
            f"no space is left to write {path}: free some and repeat the command; what was finished before is kept"
        )
        full.errno = error.errno
        raise full from error


def _give_name(partial: Path, path: Path, there: tuple[int, ...] | None, old: Path) -> None:
    """Give a finished file or folder its name; what was put there while it was written is not replaced."""
    appeared = FileExistsError(
        f"{path} was created or changed by another process while it was being written, and is not replaced: choose "
        "another path, or repeat the command"
    )
    if identity(path) not in (None, there):
        raise appeared
    if path.is_dir():
        path.rename(old)
    try:
        partial.replace(path)  # which the system refuses where a folder with contents has appeared
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        raise appeared from error


def identity(path: Path) -> tuple[int, ...] | None:
    """Return what distinguishes a file or folder from another, or a changed one, of the same name; None for none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def remove_path(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Remove what interrupted writers left in ``folder``; the caller must hold its lock."""
    for partial in partials(folder):
        remove_path(partial)


def partials(folder: Path) -> list[Path]:
    """List what interrupted writers left in ``folder`` (names ending in ``.partial``)."""
    return list(folder.glob(PARTIAL))


def holds_only(folder: Path, *patterns: str) -> bool:
    """Return whether all names in a folder match; it is listed once, since others may be about to begin in it."""
    return all(any(path.match(pattern) for pattern in patterns) for path in folder.iterdir())


def write_json(path: str | os.PathLike[str], data: Mapping[str, object]) -> None:
    """Write ``data`` atomically as indented JSON with a checksum (NaN is written as ``null``)."""
    entries = json.loads(to_json(data))
    with atomic_path(path) as partial:
        partial.write_text(to_json(entries | {_CHECKSUM: _SHA256 + _checksum(entries)}) + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what :func:`write_json` wrote, without the checksum; files without one are those of earlier versions."""
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{os.fspath(path)} cannot be read as JSON ({error}): restore it from a copy, or remove it and repeat the "
            "command that wrote it"
        ) from error
    if not isinstance(entries, dict):
        raise ValueError(f"{os.fspath(path)} holds a JSON {type(entries).__name__} where names and values are expected")
    written = entries.pop(_CHECKSUM, None)
    # Without its name a checksum would be taken for another entry.
    nameless = written is None and any(str(value).startswith(_SHA256) for value in entries.values())
    if nameless or (written is not None and str(written).removeprefix(_SHA256) != _checksum(entries)):
        raise ValueError(changed_sentence(path))
    return entries


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame, *, float_format: str | None = None) -> None:
    """Write a table atomically as CSV without its index, with the same line endings on every system."""
    with atomic_path(path) as partial:
        partial.write_text(csv_text(frame, float_format=float_format), encoding="utf-8", newline="")


def csv_text(frame: pd.DataFrame, *, float_format: str | None = None) -> str:
    """Return a table as CSV; texts that a spreadsheet would run as a formula are prefixed with a quote."""
    texts = {name: frame[name].map(_as_text) for name in frame if frame[name].dtype.kind not in "bifu"}
    return frame.assign(**texts).to_csv(index=False, lineterminator="\n", float_format=float_format)


def refuse_missing_model(name: str) -> None:
    """Refuse a name that can only be a local path, and where no model lies; others may be a repository on the hub.

    The hub's client, whose error for a missing folder mentions repository names, would be asked after long imports.

    Raises:
        FileNotFoundError: with the path.
    """
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"the GGUF file {name} does not exist")
    elif path.is_file():
        raise FileNotFoundError(f"{name} is a file: name the folder of a model, a .gguf file or a hub id")
    elif not path.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"the model folder {name} does not exist")


def read_csv(path: str | os.PathLike[str] | io.StringIO, *, separator: str = ",") -> pd.DataFrame:
    """Read a table; names of prompts are kept as text, including "NA", "null" and "007"."""
    import pandas as pd

    name = "prompt_id"
    names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna()
    if names.duplicated().any():  # pandas would read the second one under another name
        raise ValueError(f"{path} has two columns {names[names.duplicated()].iloc[0]!r}: name every column differently")
    if isinstance(path, io.StringIO):
        path.seek(0)
    frame = pd.read_csv(path, sep=separator, dtype={name: str})
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes the first cells of such rows for their names
        raise ValueError(f"{path} has rows with more cells than its first line has names: name every column")
    if name in frame:  # else pandas takes some names for missing values, and tables write none
        if isinstance(path, io.StringIO):
            path.seek(0)
        frame[name] = pd.read_csv(path, sep=separator, usecols=[name], dtype=str, keep_default_na=False)[name]
        frame[name] = frame[name].str.replace(_QUOTED_FORMULA, "", regex=True)
    return frame


def to_json(data: Mapping[str, object]) -> str:
    """Write ``data`` as indented JSON; NaN and infinities, which JSON does not have, become ``null``."""
    return json.dumps(_without_nan(data), indent=2, ensure_ascii=False, allow_nan=False)


def _as_text(cell: object) -> object:
    """Prefix a text that begins like a formula with a quote, so that no spreadsheet runs it."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _checksum(entries: Mapping[str, object]) -> str:
    return digest(sorted(entries.items()))


def _partial_of(path: Path) -> Path:
    """Return a name next to ``path`` that no other writer uses."""
    # File systems allow names of 255 bytes.
    writer = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.name[:120]}.{writer}.partial")


def _sync(path: Path) -> None:
    """Flush a file, or a folder and all files in it, to the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            _sync_file(Path(folder, name))
        _sync_folder(Path(folder))
    if path.is_file():
        _sync_file(path)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, where the system can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number and content of each line that is not blank."""
    # Only line feeds end the lines of a binary file: JSON strings may contain the other characters at which
    # str.splitlines splits.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(f"line {number} of {path} is not UTF-8 ({error}): copy the file again") from error
            except json.JSONDecodeError as error:
                cut = "" if line.endswith(b"\n") else ": the file is truncated; drop the line"
                raise ValueError(f"line {number} of {path} is not JSON ({error}){cut}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} of {path} is not a JSON object: {str(row)[:60]!r}")
            yield number, row
