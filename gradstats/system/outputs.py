"""One rule of ownership: a path is free, or holds what gradstats wrote, or holds what others wrote.

What gradstats wrote is replaced silently where the new result is the same, and otherwise on request. What others wrote
is never replaced or removed: whoever is to write there refuses, before anything is computed or written.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradstats.system.files import CHECKSUM_MARK, atomic_path, csv_text, to_json, write_csv

if TYPE_CHECKING:
    import pandas as pd

#: A mark in every figure, table and page that this program writes, in a comment or in the metadata.
MARK = "written by gradstats"

# Differences of numbers that count as rounding, since another number of threads adds in another order: relative, and
# absolute for what is zero but for rounding.
_RELATIVE, _ABSOLUTE = 1e-6, 1e-12


class OutputType(NamedTuple):
    """A kind of output: what messages call it, and how one that gradstats wrote is recognised."""

    what: str
    is_ours: Callable[[Path], bool]


def is_marked(path: Path) -> bool:
    """Return whether a file holds :data:`MARK`, or is a JSON file with the checksum that this program adds."""
    return path.is_file() and any(mark in path.read_bytes() for mark in (MARK.encode(), CHECKSUM_MARK))


REPORT, TABLE = OutputType("a report", is_marked), OutputType("a table", is_marked)


def csv_with(columns: Collection[str], what: str) -> OutputType:
    """Return the kind of CSV files that have at least these columns."""

    def is_ours(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            header = file.readline(100_000).decode("utf-8", "replace")
        return set(columns) <= set(header.strip().split(","))

    return OutputType(what, is_ours)


def claim(
    path: str | os.PathLike[str],
    kind: OutputType,
    *,
    overwrite: bool = True,
    difference: Callable[[], str | None] = lambda: None,
) -> None:
    """Refuse to write where others wrote something, or where a different result lies that may not be replaced.

    Args:
        path: where a result is to be written.
        kind: of the result.
        overwrite: replace a different result as well.
        difference: returns how the result that lies there differs, as in "another seed"; None where it does not.

    Raises:
        FileExistsError: names what lies there, and the remedy.
        NotADirectoryError: where the path leads through a file.
    """
    path = Path(path)
    parent = next((folder for folder in path.parents if folder.exists()), None)
    if parent is not None and not parent.is_dir():
        raise NotADirectoryError(f"{path} cannot be written, since {parent} is not a folder: choose another path")
    if not os.path.lexists(path):
        return
    if not path.is_file() and not path.is_dir():
        raise FileExistsError(
            f"{path} is not a file or folder (a device, a pipe or a broken link): choose another path"
        )
    if not kind.is_ours(path):
        raise FileExistsError(
            f"the {'folder' if path.is_dir() else 'file'} {path} exists and is not {kind.what} that gradstats wrote; "
            "it is not replaced: choose another path, or remove it yourself"
        )
    if not overwrite and (different := difference()):
        raise FileExistsError(
            f"{path} holds a finished result with {different}: replace it with --overwrite (overwrite=True), or choose "
            "another path (--out)"
        )


def refuse_links(run: str | os.PathLike[str], *, cells: Collection[str] = ()) -> None:
    """Refuse to write into a run directory that contains symbolic links, which may lead to any file outside it.

    The folders ``rollouts`` and ``measurement`` may themselves be links to folders, for instance on a larger disk; what
    they hold may not. The run directory may be reached through a link.
    """
    run = Path(run)
    runs = [run / cell for cell in cells if not (run / cell).is_symlink()] if cells else [run]
    movable = [folder / name for folder in runs for name in ("rollouts", "measurement")]
    moved = [folder for folder in movable if folder.is_symlink() and folder.is_dir()]
    links = sorted(
        path
        for top in (run, *moved)
        for folder, folders, files in os.walk(top, onerror=_fail_unless_gone)
        for path in (Path(folder, name) for name in (*folders, *files))
        if path.is_symlink() and path not in moved
    )
    if links:
        what = "the folder of a sweep" if cells else "a run directory"
        raise ValueError(
            f"{links[0]} is a symbolic link, and nothing is written into {what} that contains one, since a "
            "file elsewhere would be replaced: replace the link with a copy of what it leads to, or remove it (only "
            "the folders rollouts and measurement of a run may be links)"
        )


def differing_entry(
    there: Mapping[str, object], wanted: Mapping[str, object], varying: Collection[str] = ()
) -> str | None:
    """Return how the metadata of two results differ, as in "another seed"; None where they agree up to rounding."""
    as_read = json.loads(to_json(wanted))
    names = (as_read.keys() | there.keys()) - set(varying)
    names = {name for name in names if not _same(as_read.get(name), there.get(name))}
    # A setting says more than a list of numbers that were found with it.
    first = min(names, key=lambda name: (isinstance(as_read.get(name, there.get(name)), list), name), default=None)
    return None if first is None else f"another {first}"


def other_numbers(path: Path, wanted: str) -> str | None:
    """Return "other numbers" where a file holds another table than the wanted CSV.

    None where texts and whole numbers are the same, and other numbers the same up to rounding.
    """
    text = path.read_text(encoding="utf-8")
    if text == wanted:
        return None
    tables = (list(csv.reader(io.StringIO(one))) for one in (text, wanted))
    there, other = ([[_number(cell) for cell in row] for row in rows] for rows in tables)
    return None if _same(there, other) else "other numbers"


def _number(cell: str) -> object:
    """Return a cell as a float where it is written as one; whole numbers may be names of prompts."""
    try:
        return cell if cell.lstrip("-").isdigit() else float(cell)
    except ValueError:
        return cell


def _same(one: object, other: object) -> bool:
    """Return whether two values, or all that they contain, are equal, floats up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return one == other


def write_marked(path: Path, text: str, kind: OutputType) -> None:
    """Write a text that contains :data:`MARK`; replace only an earlier one."""
    claim(path, kind)
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_table(path: Path, frame: pd.DataFrame, *, overwrite: bool) -> None:
    """Write a table to the user's path: replace the same table up to rounding, and a different one only on request."""
    kind = csv_with(list(map(str, frame)), "a table of these columns")
    claim(path, kind, overwrite=overwrite, difference=lambda: other_numbers(path, csv_text(frame)))
    write_csv(path, frame)


def _fail_unless_gone(error: OSError) -> None:
    """Raise what :func:`os.walk` would pass over, except for a folder that has been removed meanwhile or is absent."""
    if not isinstance(error, FileNotFoundError):
        raise error
