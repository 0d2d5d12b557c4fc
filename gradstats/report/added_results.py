"""Answers that a command adds to a finished run, or writes to a folder: the numbers, and their figure."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradstats import plots
from gradstats.answers.answer import COMPUTED_WITH, Answer
from gradstats.config.experiment import FiguresSection
from gradstats.plots.save import claim_figure, write_sample_size
from gradstats.report.figures import RunFigure, figures_of, sample_size_of_run, styled
from gradstats.report.saved_results import SavedResults, read_results
from gradstats.system.files import csv_text


def save_addition(
    answer: Answer, folder: Path, name: str, *, overwrite: bool = True, uses_values: bool = True
) -> list[Path]:
    """Write an answer to ``tables`` and its figure to ``figures`` of a folder; returns the paths.

    The figure of a run is drawn in the style that its experiment states. The answer says which rewards and values it
    was computed with, and is left out of what is shown once the run has others; then it may be replaced. One that
    lies there already is not written again. The caller holds the run's lock.
    """
    run = SavedResults(folder, name, {}, {}, {})
    if (folder / "measurement").is_dir():
        with warnings.catch_warnings():  # of answers left out, as that which is replaced
            warnings.simplefilter("ignore")
            run = read_results(folder)
        overwrite = overwrite or name not in run.answers
        state = {COMPUTED_WITH: (run.manifest.get("computed_with") or {}) | ({} if uses_values else {"values": None})}
        further = {key: replace(one, about={**one.about, **state}) for key, one in answer.further.items()}
        answer = replace(answer, about={**answer.about, **state}, further=further)
    style = run.figure_style if run.settings else FiguresSection()
    figures = figures_of(replace(run, answers={name: answer}), style)
    if run.answers.get(name) == answer and all(_is_drawn(folder, figure, style.formats) for figure in figures):
        return []  # asking again changes no file
    for figure in figures:
        claim_figure(folder / "figures" / figure.name, style.formats, list(map(str, figure.table)))
    paths = answer.save(folder / "tables" / name, overwrite=overwrite)
    for figure in figures:
        with styled(style) as current_figure:
            figure.declared.draw(figure.table)
            write_sample_size(current_figure(), sample_size_of_run(run, figure.table))
            paths += plots.save_figure(
                current_figure(), folder / "figures" / figure.name, style.formats, source=figure.table
            )
    return paths


def _is_drawn(folder: Path, figure: RunFigure, formats: Sequence[str]) -> bool:
    """Return whether a figure of these numbers lies in a folder, whose table is written last."""
    stem = folder / "figures" / figure.name
    table = stem.with_name(f"{figure.name}.csv")
    there = all(stem.with_name(f"{figure.name}.{suffix}").exists() for suffix in formats) and table.exists()
    return there and table.read_text(encoding="utf-8") == csv_text(figure.table)
