"""How often 95 % intervals cover the truth, in simulated data sets: one loop over the tables of coverage_checks.py.

``python benchmarks/coverage.py --only heavy_tails`` draws the data sets of figures/statistics/coverage_heavy_tails.csv
and writes it; coverage_page.py puts such tables into docs/statistics.md. Finished data sets are lines of files under
build/coverage, which an interrupted run resumes from: remove them after a change to estimators or intervals.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pandas as pd
import tyro

from gradstats.system.files import csv_text, write_csv

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests")]  # the declarations, and their oracles

import coverage_checks as checks  # noqa: E402  # needs the path

FOLDER = ROOT / "figures" / "statistics"
RECORDS = ROOT / "build" / "coverage"
#: Data sets of a cell in a quick run.
QUICK = 5

Cell = tuple[str, tuple]


def name_of(name: str, cell: tuple) -> str:
    """A cell as ``--only`` and its file name it, such as ``heavy_tails: measured, sd 2.0; 100``."""
    return f"{name}: {'; '.join(map(str, cell))}"


def records(name: str, cell: tuple, sets: int, folder: Path | None = None) -> pd.DataFrame:
    """The records of the data sets 0, 1, … of a cell, from its file in the folder as far as it goes."""
    path = folder / f"{name_of(name, cell)}.jsonl" if folder else None
    text = path.read_text(encoding="utf-8") if path and path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # without a last line that was cut short
    if path and len(lines) < sets:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data_set = checks.CHECKS[name].data_set(*cell) if len(lines) < sets else None
    for seed in range(len(lines), sets):
        assert data_set is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines.append(json.dumps(list(data_set(seed)), default=lambda number: number.item(), ensure_ascii=False))
        if path:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{lines[-1]}\n")
    return pd.DataFrame([record for line in lines[:sets] for record in json.loads(line)])


def rows(name: str, cell: tuple, sets: int | None = None, folder: Path | None = None) -> pd.DataFrame:
    """The rows of a cell; without any if no data set has a record."""
    sets = sets or checks.CHECKS[name].sets
    frame = records(name, cell, sets, folder)
    return checks.CHECKS[name].rows(frame, sets, *cell) if len(frame) else frame


def merged(name: str, new: pd.DataFrame) -> pd.DataFrame:
    """The committed table with new rows in place of those with their identity, and others at its end, as texts."""
    check, path = checks.CHECKS[name], FOLDER / f"{checks.CHECKS[name].table}.csv"
    texts = [csv_text(new, float_format=check.float_format)]
    if path.exists():
        texts.insert(0, path.read_text(encoding="utf-8"))
    tables = [pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False) for text in texts]
    found = {tuple(row[key] for key in check.identity): row for one in tables for row in one.to_dict("records")}
    return pd.DataFrame(found.values(), columns=tables[-1].columns)


def simulate(cells: list[Cell], sets: int | None, folder: Path | None, processes: int) -> Iterator[pd.DataFrame]:
    """The rows of each cell in turn, simulated so many at a time; prints which are done."""
    start = time.monotonic()
    work = partial(rows, sets=sets, folder=folder)
    pool = ProcessPoolExecutor(processes, initializer=_quiet) if processes > 1 else None
    try:
        for done, table in enumerate((pool.map if pool else map)(work, *zip(*cells, strict=True))):
            at = f"[{done + 1}/{len(cells)}, {time.monotonic() - start:.0f} s]"
            print(at, name_of(*cells[done]), file=sys.stderr, flush=True)
            yield table
    finally:
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)


def _quiet() -> None:
    """Low priority, and Ctrl-C ends a worker without a traceback."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(
    only: tuple[str, ...] = (), sets: int | None = None, slow: bool = True, quick: bool = False, processes: int = 2
) -> None:
    """Simulate and write the tables, one after another; Ctrl-C keeps every finished data set.

    Args:
        only: tables, or patterns of cells such as ``"heavy_tails: measured*"``; committed rows of others stay.
        sets: data sets of a cell; those of the table's declaration by default. More than before adds to them.
        slow: with ``--no-slow``, leave out the bootstrap and Theil–Sen of α, which take minutes each.
        quick: five data sets of a cell, which are neither kept nor written: the rows are only printed.
        processes: cells at a time, at low priority.
    """
    every = [(name, cell) for name, check in checks.CHECKS.items() for cell in check.cells]
    patterns = {one: [(n, c) for n, c in every if n == one or fnmatchcase(name_of(n, c), one)] for one in only}
    if missing := [one for one, found in patterns.items() if not found]:
        raise SystemExit(f"only={missing[0]!r} names no table or cell. Tables: {', '.join(checks.CHECKS)}.")
    chosen = [cell for cell in every if not only or any(cell in found for found in patterns.values())]
    chosen = [(name, cell) for name, cell in chosen if slow or not checks.slow(cell)]
    sets, folder = (QUICK, None) if quick else (sets, RECORDS)
    run = partial(simulate, sets=sets, folder=folder, processes=processes)
    try:
        for name in dict.fromkeys(name for name, _ in chosen):
            table = pd.concat(list(run([one for one in chosen if one[0] == name])), ignore_index=True)
            print(table.to_string(index=False, float_format="{:.4g}".format), flush=True)
            if not quick:
                write_csv(FOLDER / f"{checks.CHECKS[name].table}.csv", merged(name, table))
    except KeyboardInterrupt:
        raise SystemExit("Stopped. The same command resumes from the finished data sets.") from None


if __name__ == "__main__":
    tyro.cli(main)
