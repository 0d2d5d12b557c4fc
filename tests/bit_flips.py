"""Flips single bits in the files of a finished run, and reads everything that an analysis rests on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from gradstats.measurement.measurement import read_measurement
from gradstats.report.saved_results import read_recorded_experiment, read_results
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.growth import read_plan
from gradstats.runs.regrading import read_regradings
from gradstats.system.files import read_json

#: Files that no command reads: a changed bit there changes what a person sees and no number that is computed.
SHOWN = {".png", ".pdf", ".svg", ".pgf", ".html", ".tex", ".md"}


def files_of(path: Path) -> list[Path]:
    """Every file of a run that a command reads."""
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in files if file.suffix not in SHOWN and file.parent.name != "figures")


def numbers_of(path: Path) -> str:
    """A digest of every number and setting that commands read from a run."""
    sha = hashlib.sha256()

    def add(*values: object) -> None:
        for value in values:
            sha.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())

    measured, rollouts, results = read_measurement(path), read_rollouts(path), read_results(path)
    for table in (rollouts, measured.rollouts):
        add(table.metadata, *(table.frame[name].tolist() for name in table.frame))
    add(measured.metadata, measured.sq_norms_by_block.to_numpy(), list(measured.sq_norms_by_block), measured.sketches)
    for rows in (measured.per_token_fields() | measured.heavy_fields()).values():
        add(*rows)
    add(results.settings, results.manifest, results.alpha, read_recorded_experiment(path / "experiment.yaml").name)
    tokens = [] if results.tokens is None else [results.tokens.proxies, results.tokens.traces, results.tokens.sample]
    for frame in (results.points, results.variance, *results.breakdowns.values(), *tokens, *results.added.values()):
        add(None if frame is None else (frame.to_csv(), sorted(frame.attrs.items())))
    add(read_plan(path / "rollouts"), read_regradings(path))
    add(*(read_json(path / step / "complete.json") for step in ("rollouts", "measurement")))
    return sha.hexdigest()


def outcome(path: Path, file: Path, bit: int, expected: str) -> str:
    """What becomes of a flipped bit: "refused", "harmless", or "silent" where numbers differ; the file is restored."""
    before = file.read_bytes()
    changed = bytearray(before)
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)
    try:
        return "harmless" if numbers_of(path) == expected else "silent"
    except (ValueError, OSError, LookupError, TypeError):
        return "refused"
    finally:
        file.write_bytes(before)
