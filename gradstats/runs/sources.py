"""Reading a command's input from a path: rollouts, a measurement, or points of a length-scaling fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.report.run_folder import enclosing_run, is_run_directory, refuse_inside_run, writing_into
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.regrading import refuse_half_regraded
from gradstats.system.files import read_csv
from gradstats.system.lock import only_writer
from gradstats.system.outputs import has_columns, refuse_foreign, refuse_links


def load_rollouts_of(path: Path, *, partial: bool = False) -> Rollouts:
    """Return the rollouts of a run directory, a folder of shards, or a file.

    ``partial`` is as for :func:`gradstats.read_rollouts`.
    """
    refuse_half_regraded(path)
    return read_rollouts(path / "rollouts" if (path / "rollouts").is_dir() else path, partial=partial)


def load_measurement_of(path: Path, *, partial: bool = False) -> Measurement:
    """Return the measurement of a run directory or a folder; ``partial`` as for :func:`gradstats.read_measurement`."""
    refuse_half_regraded(path)
    return read_measurement(path / "measurement" if (path / "measurement").is_dir() else path, partial=partial)


def refuse_foreign_table(out: Path | None, columns: Sequence[str]) -> None:
    """Refuse to write a table where a file without its columns lies, or a file of a run.

    Raises:
        FileExistsError: in that case.
    """
    if out is not None:
        refuse_foreign(out, f"a table with the columns {', '.join(columns)}", lambda there: has_columns(there, columns))
        refuse_inside_run(out)


@contextmanager
def folder_of_results(source: Path, out: Path | None, *, partial: bool = False) -> Iterator[Path | None]:
    """Yield the folder that a command adds its results to, locked where it is a run; None for a bare measurement.

    Args:
        source: the measurement folder or run directory that the command reads.
        out: the folder that the user asked for; the run directory by default.
        partial: whether the results are those of an incomplete run, which does not keep them.

    Raises:
        ValueError: when it is a run directory that contains symbolic links, or any run directory and ``partial`` is
            True.
        FileExistsError: when it is another run than the one that is read.
        NotADirectoryError: when it is a file or a device.
        LockedError: when another process works on the run.
    """
    folder = source if out is None and (source / "measurement").is_dir() else out
    if folder is None:
        yield None
        return
    if os.path.lexists(folder) and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: choose another one (--out)")
    is_run = (folder / "measurement").is_dir() or is_run_directory(folder)
    if partial and (is_run or enclosing_run(folder) is not None):
        raise ValueError(
            f"with --partial nothing is written into the run {folder}, which would hold the numbers as those of "
            "all its shards: choose another folder (--out)"
        )
    if not is_run:
        refuse_inside_run(folder)
        with writing_into(folder):
            yield folder
        return
    if source.resolve() not in (folder.resolve(), (folder / "measurement").resolve()):
        raise FileExistsError(f"{folder} is another run than {source}: choose another folder (--out)")
    with only_writer(folder):
        refuse_links(folder)
        yield folder


def load_points(path: Path, *, partial: bool = False) -> dict[str, Any]:
    """Return the input of a length-scaling fit, from a CSV file or from a measurement.

    Args:
        path: a CSV file, a measurement folder or a run directory.
        partial: as for :func:`gradstats.read_measurement`.

    Returns:
        Arguments of :func:`gradstats.fit_length_scaling`: ``measured``, or ``lengths``, ``sq_norms``, ``groups`` and,
        where the CSV has them, ``truncated``.

    Raises:
        FileNotFoundError: when there is no such file or folder.
        ValueError: when the CSV cannot be read or lacks a column.
    """
    if path.is_dir():
        return {"measured": load_measurement_of(path, partial=partial)}
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a CSV file, a measurement folder or a run directory")
    try:
        frame = read_csv(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    for column in ("length", "sq_norm"):
        if column not in frame:
            raise ValueError(f"{path} has no column {column!r} (it has {', '.join(map(str, frame))})")
        if frame[column].dtype.kind not in "iuf":
            raise ValueError(f"the column {column!r} of {path} holds something that is not a number")
        if np.isinf(values := frame[column].to_numpy(dtype=float)).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise ValueError(
                f"row {row + 1} of {path} has the {column} {values[row]}: give a finite number, or drop it"
            )
    groups = frame["prompt_id"].to_numpy() if "prompt_id" in frame else None
    points = {"lengths": frame["length"].to_numpy(), "sq_norms": frame["sq_norm"].to_numpy(), "groups": groups}
    if "truncated" not in frame:
        return points
    return points | {"truncated": _yes_or_no("truncated", frame["truncated"].to_numpy(), path)}


def _yes_or_no(column: str, cells: np.ndarray, path: Path) -> np.ndarray:
    """Return a column of flags in any of the ways in which tables write them."""
    words = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}
    flags = [words.get(str(cell).strip().lower()) for cell in cells]
    if None in flags:
        row = flags.index(None)
        raise ValueError(f"row {row + 1} of {path} has {column}={cells[row]!r}: write true or false")
    return np.array(flags, dtype=bool)
