"""Several runs → one HTML page on which α and the ratios of all stand side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from gradstats.estimators.display_names import distinct_names, in_words
from gradstats.report.completion_means import ENDS
from gradstats.report.numbers import Triple, number_with_interval
from gradstats.report.page_table import Cell, Definition, Row, breakable, column_definition, named_row
from gradstats.report.rendered_page import rendered, write_page
from gradstats.report.run_folder import refuse_inside_run, writing_into
from gradstats.report.saved_results import SavedResults, differing_settings, read_results
from gradstats.report.several_runs import levels_of, numbers_of_run, run_names
from gradstats.report.sweeps import is_sweep, read_sweep
from gradstats.stats.variance.quantities import JUDGED, QUANTITIES
from gradstats.stats.variance.winner import best_rows
from gradstats.system.outputs import is_marked, refuse_foreign

# What is compared across runs: a table for each.
_COMPARED = (JUDGED.name, "ratio")


class RunRow(TypedDict):
    """One run of the first table."""

    name: str
    html: str
    link: str
    policy: str
    cells: list[Cell]


class RatioTable(TypedDict):
    """One quantity of every estimator in every run."""

    name: str
    definition: Definition
    rows: list[Row]


def write_gallery(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write one HTML page that compares runs from their saved numbers, with links to the page of each.

    Args:
        paths: run directories, and folders of sweeps, whose runs with results are taken.
        out: the file.

    Returns:
        The file's path.

    Raises:
        ValueError: when no run is named, or none of a sweep has results.
        FileNotFoundError: when a folder holds no numbers; states the command that writes them.
        FileExistsError: when the file exists and is not a report, or belongs to a run.
        OSError: when the file cannot be written.
    """
    target = Path(out)
    refuse_inside_run(target)
    runs = [run for path in paths for run in _results(Path(path))]
    if not runs:
        raise ValueError("name at least one run directory with results: gradstats report --gallery RUN RUN …")
    with writing_into(target):
        refuse_foreign(target, "a report", is_marked)
        return write_page(gallery_page(runs, target.parent), target)


def gallery_page(runs: Sequence[SavedResults], folder: Path) -> str:
    """Return the page as text.

    Args:
        runs: the runs, in the order of the page.
        folder: where the page will lie, from which its links lead.
    """
    names = run_names(runs)
    rows: list[RunRow] = [
        {
            "name": name,
            "html": breakable(name),
            "link": _link(run, folder),
            "policy": Path(str(run.settings.get("policy.name") or "")).name,
            "cells": _cells_of_run(run),
        }
        for name, run in zip(names, runs, strict=True)
    ]
    return rendered(
        "gallery.html.j2",
        title=names[0] if len(names) == 1 else f"{len(names)} runs side by side",
        names=names,
        runs=rows,
        remarks=_remarks(runs, names),
        tables=[_ratios(runs, quantity) for quantity in _COMPARED],
    )


def _results(path: Path) -> list[SavedResults]:
    return list(read_sweep(path).results.values()) if is_sweep(path) else [read_results(path)]


def _link(run: SavedResults, folder: Path) -> str:
    """Return where the page of a run lies, seen from the gallery; nothing where it has none."""
    page = run.path.resolve() / "report.html"
    return quote(Path(os.path.relpath(page, folder.resolve())).as_posix()) if page.is_file() else ""


def _cells_of_run(run: SavedResults) -> list[Cell]:
    numbers = numbers_of_run(run)
    share = numbers["truncated_share"][0]
    cells = [_cell(triple) for name, triple in numbers.items() if name != "truncated_share"]
    percent: Cell = {"html": f"{share:.1%}", "key": repr(share), "bold": False}
    return [*cells, percent if math.isfinite(share) else _cell((share, share, share))]


def _ratios(runs: Sequence[SavedResults], quantity: str) -> RatioTable:
    estimators = dict.fromkeys(
        str(name) for run in runs if run.variance is not None for name in run.variance["estimator"]
    )
    rows: list[Row] = []
    chosen = {label: name for run in runs for label, name in run.figure_style.labels.items()}
    for estimator, name in distinct_names(estimators, chosen).items():
        row = named_row(name, estimator)
        row["cells"] += [_ratio(run, estimator, quantity) for run in runs]
        rows.append(row)
    heading = QUANTITIES[quantity].heading.format(reference="the reference")
    return {"name": quantity, "definition": column_definition(quantity, heading), "rows": rows}


def _ratio(run: SavedResults, estimator: str, quantity: str) -> Cell:
    """Return the cell of an estimator in a run; an empty one where the run did not compare it."""
    frame = run.variance
    places = [] if frame is None else [at for at, name in enumerate(frame["estimator"]) if str(name) == estimator]
    if frame is None or not places:
        return {"html": "", "key": "", "bold": False}
    at = places[0]
    value, low, high = (float(frame[f"{quantity}{end}"].iloc[at]) for end in ENDS)
    return _cell((value, low, high), bold=quantity == JUDGED.name and at in best_rows(frame))


def _cell(triple: Triple, bold: bool = False) -> Cell:
    value, low, _ = triple
    key = value if math.isfinite(value) else low
    return {
        "html": number_with_interval(*triple, markup="html"),
        "key": repr(float(key)) if math.isfinite(key) else "",
        "bold": bold,
    }


def _remarks(runs: Sequence[SavedResults], names: Sequence[str]) -> list[str]:
    """Return what to know before runs are compared: level of the intervals, references, metrics, settings."""
    remarks = [
        f"Intervals are at the level of {levels_of(runs)}, with the prompt as the unit, each of its own run. None "
        "compares two runs."
    ]
    references = [str((run.variance.attrs if run.variance is not None else {}).get("reference", "–")) for run in runs]
    if len(set(references)) > 1:
        of_runs = ", ".join(f"{name}: {in_words(one)}" for name, one in zip(names, references, strict=True))
        remarks.append(f"Ratios are to different references and do not compare across runs ({of_runs}).")
    else:
        remarks.append(f"Ratios are to {in_words(references[0])}, on the completions of the same run.")
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        remarks.append(f"Runs were measured in different metrics ({', '.join(metrics)}), which do not compare.")
    for setting, values in differing_settings(list(runs)).items():
        of_runs = ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
        remarks.append(f"The runs differ in {setting} ({of_runs}).")
    return remarks
