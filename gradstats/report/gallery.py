"""Several runs → one HTML page on which α and the ratios of all stand side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from gradstats.analyses.numbers import triples_of
from gradstats.estimators.display_names import distinct_names, in_words
from gradstats.plots.variance import rows_in_best_set
from gradstats.report.figures import RunFigure, first_figure_as_svg
from gradstats.report.page import (
    Cell,
    Definition,
    Row,
    breakable,
    cell,
    column_definition,
    inline_svg,
    named_row,
    rendered,
    write_page,
)
from gradstats.report.prompts_on_page import visible
from gradstats.report.run_tables import levels_of, numbers_of_run, run_names
from gradstats.report.saved_results import (
    SavedResults,
    differing_settings,
    read_results,
    refuse_inside_run,
    writing_into,
)
from gradstats.report.sweeps import is_sweep, read_sweep
from gradstats.stats.variance.quantities import JUDGED, QUANTITIES
from gradstats.system.outputs import REPORT, refuse_foreign

#: Runs of which the page shows a figure: the first ones.
MOST_FIGURES = 12
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


@dataclass(frozen=True)
class _OfRun:
    """What the page shows of one run: the first table's cells, quantity → estimator → cell, and its first figure."""

    cells: list[Cell]
    ratios: dict[str, dict[str, Cell]]
    figure: tuple[RunFigure, str] | None


def write_gallery(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write one HTML page that compares runs from their saved numbers, with links to the page of each."""
    target = Path(out)
    refuse_inside_run(target)
    runs = [run for path in paths for run in _results(Path(path))]
    if not runs:
        raise ValueError("name at least one run directory with results: gradstats report --gallery RUN RUN …")
    with writing_into(target):
        refuse_foreign(target, REPORT)
        return write_page(gallery_page(runs, target.parent), target)


def gallery_page(runs: Sequence[SavedResults], folder: Path) -> str:
    """Return the page as text."""
    names = run_names(runs)
    of_runs = [_of_run(run, at < MOST_FIGURES) for at, run in enumerate(runs)]
    rows: list[RunRow] = [
        {
            "name": name,
            "html": breakable(name),
            "link": _link(run, folder),
            "policy": Path(str(run.settings.get("policy.name") or "")).name,
            "cells": of_run.cells,
        }
        for name, run, of_run in zip(names, runs, of_runs, strict=True)
    ]
    figures = []
    for at, (row, of_run) in enumerate(zip(rows, of_runs, strict=True)):
        if of_run.figure is not None:
            listed, svg = of_run.figure
            caption = listed.caption
            drawn = inline_svg(svg, f"run-{at}", f"{row['name']}: {caption}")
            figures.append({"run": row, "alpha": of_run.cells[0]["html"], "caption": caption, "svg": drawn})
    chosen = {label: name for run in runs for label, name in run.figure_style.labels.items()}
    return rendered(
        "gallery.html.j2",
        title=names[0] if len(names) == 1 else f"{len(names)} runs side by side",
        runs=rows,
        remarks=_remarks(runs, names),
        differing=[
            (setting, ["–" if value in (None, {}) else visible(str(value)) for value in values])
            for setting, values in differing_settings(list(runs)).items()
        ],
        tables=[_ratios(of_runs, quantity, chosen) for quantity in _COMPARED],
        figures=figures,
        without_figure=len(runs) > MOST_FIGURES,
    )


def _of_run(run: SavedResults, with_figure: bool) -> _OfRun:
    """Return what the page shows of a run."""
    try:
        return _OfRun(
            cells=_cells_of_run(run),
            ratios={quantity: _ratios_of_run(run, quantity) for quantity in _COMPARED},
            figure=first_figure_as_svg(run) if with_figure else None,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"the results of the run {run.path} are damaged ({type(error).__name__}: {error}): restore them from a "
            "copy, repeat that run, or leave it out"
        ) from error


def _results(path: Path) -> list[SavedResults]:
    return list(read_sweep(path).results.values()) if is_sweep(path) else [read_results(path)]


def _link(run: SavedResults, folder: Path) -> str:
    """Return where the page of a run lies, seen from the gallery; nothing where it has none."""
    page = run.path.resolve() / "report.html"
    return quote(Path(os.path.relpath(page, folder.resolve())).as_posix()) if page.is_file() else ""


def _cells_of_run(run: SavedResults) -> list[Cell]:
    numbers = numbers_of_run(run)
    share = numbers["truncated_share"][0]
    cells = [cell(triple) for name, triple in numbers.items() if name != "truncated_share"]
    percent: Cell = {"html": f"{share:.1%}", "key": repr(share), "bold": False}
    return [*cells, percent if math.isfinite(share) else cell((share, share, share))]


def _ratios(of_runs: Sequence[_OfRun], quantity: str, chosen: Mapping[str, str]) -> RatioTable:
    """Return a quantity of every estimator in every run; an empty cell where a run did not compare it."""
    empty: Cell = {"html": "", "key": "", "bold": False}
    rows: list[Row] = []
    estimators = dict.fromkeys(estimator for of_run in of_runs for estimator in of_run.ratios[quantity])
    for estimator, name in distinct_names(estimators, chosen).items():
        row = named_row(name, estimator)
        row["cells"] += [of_run.ratios[quantity].get(estimator, empty) for of_run in of_runs]
        rows.append(row)
    heading = QUANTITIES[quantity].heading.format(reference="the reference")
    return {"name": quantity, "definition": column_definition(quantity, heading), "rows": rows}


def _ratios_of_run(run: SavedResults, quantity: str) -> dict[str, Cell]:
    """Return the cell of each estimator; of one in groups of several sizes, that of the first."""
    if run.variance is None:
        return {}
    best = rows_in_best_set(run.variance) if quantity == JUDGED.name else []
    cells: dict[str, Cell] = {}
    estimators = map(str, run.variance["estimator"])
    for at, (estimator, triple) in enumerate(zip(estimators, triples_of(run.variance, quantity), strict=True)):
        cells.setdefault(estimator, cell(triple, bold=at in best))
    return cells


def _remarks(runs: Sequence[SavedResults], names: Sequence[str]) -> list[str]:
    """Return what to know before runs are compared: level of the intervals, references, metrics."""
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
    return remarks
