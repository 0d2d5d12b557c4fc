"""Frames that a command adds to a finished run: a table as CSV, and how it was made as JSON beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from gradstats.system.files import csv_text, read_csv, read_json, write_csv, write_json
from gradstats.system.outputs import differing_entry, has_columns, refuse_foreign, refuse_other_result, same_table

#: Prefix of the names of curves along a parameter.
CURVE = "curve_"
#: Name of the table of learned, published and oracle baselines.
OPTIMAL_BASELINES = "optimal_baselines"
#: Name of the table of a value head beside Monte-Carlo values.
CRITIC = "critic"
#: Attribute of a frame that was made from state values: the digest of those of the run.
STATE_VALUES = "state_values"
#: Names of the tables that commands add to a run, as patterns.
ADDED = (f"{CURVE}*", OPTIMAL_BASELINES, CRITIC)


def save_frame(frame: pd.DataFrame, stem: Path, *, overwrite: bool = True) -> list[Path]:
    """Write a frame and its ``.attrs``; returns the two paths.

    Another frame that may be replaced is removed first, its attributes before its table, and the new attributes are
    written last: a process killed in between leaves no table beside the attributes of another.

    Args:
        frame: the frame; its attributes must be values that JSON can hold.
        stem: path without a suffix.
        overwrite: replace the same table with other settings or numbers.

    Raises:
        FileExistsError: when another file lies there, or a table that may not be replaced.
    """
    make_room(frame, stem, overwrite=overwrite)
    table, about = frame_paths(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, frame)
    write_json(about, _attributes(frame))
    return [table, about]


def make_room(frame: pd.DataFrame, stem: Path, *, overwrite: bool) -> None:
    """Remove another frame that lies where one is to be written; nothing where it is the same.

    Args:
        frame: the frame that is to be written.
        stem: as for :func:`save_frame`.
        overwrite: as for :func:`save_frame`.

    Raises:
        FileExistsError: as :func:`save_frame`.
    """
    refuse_foreign_frame(stem, list(map(str, frame)))
    table, about = frame_paths(stem)
    if not table.exists():
        return
    same = same_table(table.read_text(encoding="utf-8"), csv_text(frame))
    difference = differing_entry(read_json(about), _attributes(frame)) if about.exists() else None
    difference = difference or (None if same else "other numbers")
    refuse_other_result(table, difference, overwrite)
    if difference is not None:
        about.unlink(missing_ok=True)
        table.unlink()


def frame_paths(stem: Path) -> list[Path]:
    """Return where a frame and its attributes lie."""
    return [stem.with_suffix(".csv"), stem.with_suffix(".json")]


def _attributes(frame: pd.DataFrame) -> dict[str, object]:
    return {str(name): value for name, value in frame.attrs.items()}


def refuse_foreign_frame(stem: Path, columns: Sequence[str]) -> None:
    """Refuse to write a frame where something lies that is not an earlier one with these columns.

    Raises:
        FileExistsError: in that case.
    """
    table, about = frame_paths(stem)
    refuse_foreign(table, "an earlier table of this command", lambda there: has_columns(there, columns))
    refuse_foreign(about, "the settings of an earlier table", lambda _: table.is_file())


def read_frame(table: Path) -> pd.DataFrame:
    """Return what :func:`save_frame` wrote, with its ``.attrs``; a number that is not finite is None among these.

    Raises:
        ValueError: when a file is broken.
    """
    try:
        frame = read_csv(table)
        about = table.with_suffix(".json")
        frame.attrs |= read_json(about) if about.exists() else {}
    except (ValueError, OSError) as error:
        raise ValueError(f"{table} cannot be read ({error}): repeat the command that made it") from error
    return frame


def read_added(run: Path) -> dict[str, pd.DataFrame]:
    """Return the frames that commands added to a run directory: name → frame, in alphabetical order."""
    return {path.stem: read_frame(path) for path in added_tables(run)}


def added_tables(run: Path) -> list[Path]:
    """Return the tables that commands added to a run directory, in alphabetical order, each with its JSON beside it."""
    tables = (path for pattern in ADDED for path in sorted((run / "tables").glob(f"{pattern}.csv")))
    return [path for path in tables if path.with_suffix(".json").exists()]
