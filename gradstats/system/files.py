"""Files and folders that exist whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write a file or a folder to; rename it on success.

    A process that is killed, or a full disk, leaves ``path`` as it was: a reader never finds half a file.
    The temporary name starts with a dot and ends in ``.partial``, so that no reader's pattern matches it.

    Args:
        path: the final name; an existing file or folder is replaced.

    Raises:
        OSError: when the file system refuses (no space, no permission); the temporary file is removed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        remove_path(partial)


def remove_path(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Remove what interrupted writers left in ``folder`` (names ending in ``.partial``)."""
    for partial in folder.glob(".*.partial"):
        remove_path(partial)


def write_json(path: str | os.PathLike[str], data: Mapping[str, object]) -> None:
    """Write ``data`` as indented JSON, whole or not at all (NaN is written as ``null``)."""
    with atomic_path(path) as partial:
        partial.write_text(to_json(data) + "\n", encoding="utf-8")


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame, *, float_format: str | None = None) -> None:
    """Write a table as CSV without its index, whole or not at all, with the same line ends on every system."""
    with atomic_path(path) as partial:
        frame.to_csv(partial, index=False, lineterminator="\n", float_format=float_format)


def to_json(data: Mapping[str, object]) -> str:
    """Write ``data`` as indented JSON; NaN and infinities, which JSON does not have, become ``null``."""
    return json.dumps(_without_nan(data), indent=2, ensure_ascii=False, allow_nan=False)


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
