"""Reading a command's input from a path: rollouts, a measurement, or points of a length-scaling fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.regrading import refuse_half_regraded


def load_rollouts_of(path: Path) -> Rollouts:
    """Return the rollouts of a run directory, of a folder of shards, or of a file."""
    refuse_half_regraded(path)
    return read_rollouts(path / "rollouts" if (path / "rollouts").is_dir() else path)


def load_measurement_of(path: Path) -> Measurement:
    """Return the measurement of a run directory or of a measurement folder."""
    refuse_half_regraded(path)
    return read_measurement(path / "measurement" if (path / "measurement").is_dir() else path)


def load_points(path: Path) -> dict[str, Any]:
    """Return the input of a length-scaling fit, from a CSV file or from a measurement.

    Args:
        path: a CSV file, a measurement folder or a run directory.

    Returns:
        Arguments of :func:`gradstats.fit_length_scaling`: ``measured``, or ``lengths``, ``sq_norms``, ``groups`` and,
        where the CSV has them, ``truncated``.

    Raises:
        FileNotFoundError: when there is no such file or folder.
        ValueError: when the CSV cannot be read or lacks a column.
    """
    if path.is_dir():
        return {"measured": load_measurement_of(path)}
    import pandas as pd

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a CSV file, a measurement folder or a run directory")
    try:
        frame = pd.read_csv(path, dtype={"prompt_id": str})
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    for column in ("length", "sq_norm"):
        if column not in frame:
            raise ValueError(f"{path} has no column {column!r} (it has {', '.join(map(str, frame))})")
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"the column {column!r} of {path} holds something that is not a number")
    groups = frame["prompt_id"].to_numpy() if "prompt_id" in frame else None
    points = {"lengths": frame["length"].to_numpy(), "sq_norms": frame["sq_norm"].to_numpy(), "groups": groups}
    return points | ({"truncated": frame["truncated"].to_numpy(dtype=bool)} if "truncated" in frame else {})
