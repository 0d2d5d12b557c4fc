"""Several runs → one HTML page on which α and the ratios of all stand side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from gradstats.analyses.printed import triples_of
from gradstats.estimators.display_names import distinct_names, in_words
from gradstats.plots.variance import rows_shown_below
from gradstats.report.columns import INDEX
from gradstats.report.figures import first_figure_as_svg
from gradstats.report.glossary import meaning_of
from gradstats.report.page import TableOnPage, inline_svg, rendered, table_on_page, write_page
from gradstats.report.prompts_on_page import visible
from gradstats.report.run_tables import RUN_HEADINGS, levels_of, run_names, runs_table
from gradstats.report.saved_results import (
    SavedResults,
    differing_settings,
    read_results,
    refuse_inside_run,
    writing_into,
)
from gradstats.report.sweeps import is_sweep, read_sweep
from gradstats.report.tables import Table, cell_text
from gradstats.stats.variance.quantities import JUDGED, QUANTITIES, limits_of
from gradstats.system.outputs import REPORT, claim

#: Runs of which the page shows a figure: the first ones.
MOST_FIGURES = 12
# What is compared across runs: a table for each.
_COMPARED = (JUDGED.name, "ratio")


def write_gallery(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write one HTML page that compares runs from their saved numbers, with links to the page of each."""
    target = Path(out)
    refuse_inside_run(target)
    runs = [run for path in paths for run in _results(Path(path))]
    if not runs:
        raise ValueError("name at least one run directory with results: gradstats report --gallery RUN RUN …")
    with writing_into(target):
        claim(target, REPORT)
        return write_page(gallery_page(runs, target.parent), target)


def _results(path: Path) -> list[SavedResults]:
    return list(read_sweep(path).results.values()) if is_sweep(path) else [read_results(path)]


def gallery_page(runs: Sequence[SavedResults], folder: Path) -> str:
    """Return the page as text."""
    named = dict(zip(run_names(runs), runs, strict=True))
    table = runs_table(named)
    alphas = [cell_text(one, "html") for one in table.columns.get("α", [])] or ["–"] * len(runs)
    figures = []
    for at, (name, run) in enumerate(list(named.items())[:MOST_FIGURES]):
        drawn = first_figure_as_svg(run)
        if drawn is not None:
            listed, svg = drawn
            svg = inline_svg(svg, f"run-{at}", f"{name}: {listed.caption}")
            figures.append({"run": name, "alpha": alphas[at], "caption": listed.caption, "svg": svg})
    meanings = {one.name: one.meaning for one in (*INDEX["alpha"], *INDEX["sweep"])}
    policies = [Path(str(run.settings.get("policy.name") or "")).name for run in runs]
    return rendered(
        "gallery.html.j2",
        title=next(iter(named)) if len(named) == 1 else f"{len(named)} runs side by side",
        names=list(named),
        links={name: _link(run, folder) for name, run in named.items()},
        runs=table_on_page(_in_per_cent(table), lambda name: (meanings[name], ""), policies),
        remarks=_remarks(named),
        differing=[
            (setting, ["–" if value in (None, {}) else visible(str(value)) for value in values])
            for setting, values in differing_settings(list(runs)).items()
        ],
        compared=[_compared(named, quantity) for quantity in _COMPARED],
        figures=figures,
        without_figure=len(runs) > MOST_FIGURES,
    )


def _in_per_cent(table: Table) -> Table:
    """Return the table of runs with the share of completions that were cut off in per cent."""
    cut_off = RUN_HEADINGS["truncated_share"]
    columns = {
        f"{heading}, %" if heading == cut_off else heading: [
            (100 * cell[0], math.nan, math.nan) if heading == cut_off else cell for cell in cells
        ]
        for heading, cells in table.columns.items()
    }
    return replace(table, columns=columns)


def _link(run: SavedResults, folder: Path) -> str:
    """Return where the page of a run lies, seen from the gallery; nothing where it has none."""
    page = run.path.resolve() / "report.html"
    return quote(Path(os.path.relpath(page, folder.resolve())).as_posix()) if page.is_file() else ""


def _compared(named: Mapping[str, SavedResults], quantity: str) -> dict[str, str | TableOnPage]:
    """Return a quantity of every estimator in every run; an empty cell where a run did not compare it.

    Of an estimator in groups of several sizes the first is shown.
    """
    frames = {name: run.variance for name, run in named.items() if run.variance is not None}
    estimators = list(dict.fromkeys(str(label) for frame in frames.values() for label in frame["estimator"]))
    chosen = {label: name for run in named.values() for label, name in run.figure_style.labels.items()}
    columns, bold = {}, set()
    for at, name in enumerate(named):
        frame = frames.get(name, pd.DataFrame({"estimator": []}))
        labels = [str(label) for label in frame["estimator"]]
        cells = triples_of(frame, quantity, limits_of(quantity))
        columns[name] = [cells[labels.index(label)] if label in labels else "" for label in estimators]
        best = rows_shown_below(frame) if quantity == JUDGED.name else []
        bold |= {(estimators.index(labels[row]), at) for row in best if labels.index(labels[row]) == row}
    rows = tuple(distinct_names(estimators, chosen).values())
    table = Table("", "estimator", rows, columns, pd.DataFrame(), frozenset(bold))
    return {
        "name": quantity,
        "heading": QUANTITIES[quantity].heading.format(reference="the reference"),
        "meaning": meaning_of(quantity),
        "table": table_on_page(table, labels=estimators),
    }


def _remarks(named: Mapping[str, SavedResults]) -> list[str]:
    """Return what to know before runs are compared: level of the intervals, references, metrics."""
    runs = list(named.values())
    remarks = [
        f"Intervals are at the level of {levels_of(runs)}, with the prompt as the unit, each of its own run. None "
        "compares two runs."
    ]
    references = [str((run.variance.attrs if run.variance is not None else {}).get("reference", "–")) for run in runs]
    if len(set(references)) > 1:
        of_runs = ", ".join(f"{name}: {in_words(one)}" for name, one in zip(named, references, strict=True))
        remarks.append(f"Ratios are to different references and do not compare across runs ({of_runs}).")
    else:
        remarks.append(f"Ratios are to {in_words(references[0])}, on the completions of the same run.")
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        remarks.append(f"Runs were measured in different metrics ({', '.join(metrics)}), which do not compare.")
    return remarks
