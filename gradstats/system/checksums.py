"""Digests of data and of files, by which a reader notices that something has changed since it was written."""

from __future__ import annotations

import hashlib
import json
import os
import warnings

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
    """Refuse a file that a later version of this program wrote.

    Raises:
        ValueError: in that case.
    """
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
