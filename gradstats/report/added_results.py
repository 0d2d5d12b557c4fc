"""Answers that a command adds to a finished run, or writes to a folder, with their figures; what none belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradstats import plots
from gradstats.analyses import registry
from gradstats.answers.answer import COMPUTED_WITH, Answer
from gradstats.config.experiment import FiguresSection
from gradstats.plots.save import FORMATS, claim_figure, write_sample_size
from gradstats.report.figures import RunFigure, figures_of, sample_size_of_run, styled
from gradstats.report.saved_results import SavedResults, answer_stems, listed_results, read_results
from gradstats.system.files import csv_text
from gradstats.system.outputs import is_marked, other_numbers


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
        state = {COMPUTED_WITH: run.manifest.get("computed_with") or {}}
        if not uses_values:  # as the answer that lies there states: what the run answered itself names its values
            there = run.answers[name].about.get(COMPUTED_WITH) if name in run.answers else None
            state[COMPUTED_WITH] = {**state[COMPUTED_WITH], "values": (there or {}).get("values")}
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


def remove_stale(held: SavedResults, style: FiguresSection, exported: Mapping[str, Path] | None = None) -> None:
    """Remove the tables for papers and the figures of answers that a run no longer holds.

    In the run, those of an answer that has other numbers now are among them. What others wrote stays, and so does what
    a user drew under names of their own.

    Args:
        held: the answers of the run.
        style: of its figures.
        exported: folders of tables and figures to remove them from, by kind, where these are not those of the run.
    """
    run = held.path
    listed = listed_results(run)
    names = {stem.name for stem in answer_stems(run)}
    if exported is None:
        names |= {path.stem for path in listed}
        names |= {figure.name for analysis in registry.all_analyses() for figure in analysis.figures}
    folders = exported or {kind: run / kind for kind in ("tables", "figures")}
    answers = {name: answer.csv for name, answer in held.answers.items()}
    figures = {one.name: lambda one=one: csv_text(one.table) for one in figures_of(held, style)}
    for kind, folder in folders.items():
        suffixes, now = (("tex", "md"), answers) if kind == "tables" else (FORMATS, figures)
        for stem in sorted(names if exported is None else names - set(now)):
            made = [path for path in (folder / f"{stem}.{suffix}" for suffix in suffixes) if is_marked(path)]
            alone = kind == "tables" and stem in registry.OF_EVERY_RUN
            numbers = (run if alone else folder) / f"{stem}.csv"
            if kind == "figures" and (made or numbers in listed):
                made.insert(0, numbers)
            if made and not (stem in now and numbers.exists() and other_numbers(numbers, now[stem]()) is None):
                for path in made:
                    path.unlink(missing_ok=True)
