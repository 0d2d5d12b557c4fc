"""The input of a length-scaling fit, from what a user names: a table, published points, a measurement or a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gradstats import data
from gradstats.measurement.measurement import read_measurement
from gradstats.system.files import read_csv, read_json_lines
from gradstats.system.lazy_imports import pd

#: The path that stands for standard input.
_STDIN = Path("-")


def load_points(path: Path, *, partial: bool = False) -> dict[str, Any]:
    """A table with the columns length, sq_norm and, where prompts repeat, prompt_id (.csv, .tsv, .jsonl or .parquet; -
    for standard input); a measurement folder or a run directory; or the name of a published data set, as in
    gloeckle2026.
    """  # noqa: D401
    if path.is_dir():
        return {"measured": read_measurement(path, partial=partial)}
    frame = _table(path)
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
    if "prompt_id" in frame and (unnamed := frame["prompt_id"].isna().to_numpy()).any():
        raise ValueError(f"row {int(np.flatnonzero(unnamed)[0]) + 1} of {path} has no prompt_id: name its prompt")
    groups = frame["prompt_id"].astype(str).to_numpy() if "prompt_id" in frame else None
    points = {"lengths": frame["length"].to_numpy(), "sq_norms": frame["sq_norm"].to_numpy(), "groups": groups}
    if "truncated" not in frame:
        return points
    return points | {"truncated": _yes_or_no("truncated", frame["truncated"].to_numpy(), path)}


def _table(path: Path) -> pd.DataFrame:
    """Read a table by the ending of its name; a file of another ending is CSV."""
    if path == _STDIN:
        return _from_text(sys.stdin.read())
    if not path.exists():
        if str(path) in data.names():
            return data.load(str(path))
        raise FileNotFoundError(
            f"{path} does not exist: give a table (CSV, TSV, JSON Lines or Parquet; - for standard input), a "
            f"measurement folder, a run directory, or the name of a published data set ({', '.join(data.names())})"
        )
    kind = {".tsv": "TSV", ".jsonl": "JSON Lines", ".parquet": "Parquet"}.get(path.suffix, "CSV")
    try:
        if kind == "Parquet":
            return pd.read_parquet(path)
        if kind == "JSON Lines":
            return pd.DataFrame([row for _, row in read_json_lines(path)])
        return read_csv(path, separator="\t" if kind == "TSV" else ",")
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as {kind} ({' '.join(str(error).split())}): give a table with the columns length "
            "and sq_norm, a run directory or a measurement folder"
        ) from error


def _from_text(text: str) -> pd.DataFrame:
    """Read a table from standard input, whose first line shows its format."""
    first = text.lstrip().partition("\n")[0]
    try:
        if first.startswith("{"):
            return pd.DataFrame([json.loads(line) for line in text.split("\n") if line.strip()])
        return read_csv(io.StringIO(text), separator="\t" if "\t" in first else ",")
    except ValueError as error:
        raise ValueError(f"standard input cannot be read as CSV, TSV or JSON Lines: {error}") from error


def _yes_or_no(column: str, cells: np.ndarray, path: Path) -> np.ndarray:
    """Return a column of flags in any of the ways in which tables write them."""
    words = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}
    flags = [words.get(str(cell).strip().lower()) for cell in cells]
    if None in flags:
        row = flags.index(None)
        raise ValueError(f"row {row + 1} of {path} has {column}={cells[row]!r}: write true or false")
    return np.array(flags, dtype=bool)
