"""The tables of a run, and those of several runs: α of each, and every estimator in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from gradstats.analyses import registry
from gradstats.analyses.numbers import percent
from gradstats.analyses.printed import triples_of
from gradstats.analyses.variance import COMPARED_ROWS
from gradstats.answers import Answer
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.sections import FiguresSection
from gradstats.report.analysis_tables import alpha_table, equal_rows_once, frame_in_words, table_of, variance_table
from gradstats.report.figures import OR, chosen_rows, stacked
from gradstats.report.latex import Layout
from gradstats.report.saved_results import ENDS, SavedResults, completion_means
from gradstats.report.tables import Table
from gradstats.stats.variance.quantities import JUDGED, shown_in
from gradstats.system.outputs import MARK, TABLE, claim


def run_tables(
    answers: Mapping[str, Answer], name: str, style: FiguresSection, *, by_value: bool = False
) -> dict[str, Table]:
    """Return every table of the answers of a run: name of its file → table. Estimators are named as in figures.

    Args:
        answers: of the run, by the names of their files.
        name: of the run.
        style: which estimators are listed, in which order, and what they are called.
        by_value: sort the estimators by relative noise.
    """
    tables: dict[str, Table] = {}
    for file, answer in answers.items():
        declared = registry.of_answer(answer.question)
        if declared is None or not declared.shown_in("paper"):
            continue
        if declared.name == "alpha":
            tables[file] = alpha_table({style.labels.get(name, name): answer.frame})
        elif (frame := _chosen(answer.frame, style)) is not None:
            if declared.name == "variance":
                if by_value:
                    frame = frame.sort_values(JUDGED.name, kind="stable", ignore_index=True)
                frame.attrs[COMPARED_ROWS] = answer.frame["estimator"].nunique()
            table = table_of(declared, frame)
            if declared.name == "variance" and len(set(frame["group_size"].dropna())) == 1:
                table = equal_rows_once(table)
            # Of a question that was asked several times each file has a table of its own.
            tables[file] = replace(table, label=f"tab:{file.replace('_', '-')}")
    return tables


def left_out(table: Table, layout: Layout) -> list[str]:
    """Return the headings of the columns for which a layout has no room."""
    shown = set(table.headings_at(layout))
    return [heading for heading in table.columns if heading not in shown]


def layout_for(table: Table, layout: Layout) -> Layout:
    """Return a layout that asks only for columns that a table has; for those that fit where it has none of them."""
    known = tuple(name for name in layout.columns if table.names.get(name, name) in table.columns)
    return replace(layout, columns=known)


def latex_of(tables: Mapping[str, Table], folder: Path, layout: Layout) -> dict[Path, str]:
    """Return tables in LaTeX by the files to write them to, ``NAME.tex``, which must be free or earlier ones."""
    for column in layout.columns:
        if not any(layout_for(table, replace(layout, columns=(column,))).columns for table in tables.values()):
            has = sorted({name for table in tables.values() for name in (table.names or table.columns)})
            raise ValueError(f"--columns {column}: no table of the run has such a column, only {', '.join(has)}")
    latex = {name: table.to_latex(layout_for(table, layout)) for name, table in tables.items()}
    texts = {folder / f"{name}.tex": f"% {MARK}\n{text}" for name, text in latex.items()}
    for path in texts:
        claim(path, TABLE)
    return texts


def _chosen(frame: pd.DataFrame, style: FiguresSection) -> pd.DataFrame | None:
    """Return the rows of the estimators to list, with the names that they are given; None where there are none."""
    chosen = chosen_rows(frame, style)
    return None if chosen is None or chosen.empty else chosen


#: Numbers of a run, in the order of a table: name → heading.
RUN_HEADINGS = {
    "alpha": "α",
    "alpha_within": "α within prompts",
    "n_prompts": "prompts",
    "n_completions": "completions",
    "mean_reward": "mean reward",
    "mean_length": "mean length",
    "truncated_share": "cut off",
}
_NARROW_FIRST = ("alpha", "n_prompts", "n_completions", "alpha_within")


def run_names(runs: Sequence[SavedResults]) -> list[str]:
    """Return the name of each run; those of the folders, as far as it takes, where names are shared."""
    folders, paths = [run.path.resolve().name for run in runs], [str(run.path) for run in runs]
    candidates = ([run.name for run in runs], folders, paths)
    return next((names for names in candidates if len(set(names)) == len(names)), candidates[-1])


def numbers_of_run(run: SavedResults) -> dict[str, float]:
    """Return the numbers of :data:`RUN_HEADINGS`, with the ends of their intervals; NaN where a run has none."""
    alpha = run.alpha or {}
    entries = {"alpha": alpha, "alpha_within": alpha.get("within_prompt") or {}}
    known = {f"{name}{end}": of.get(f"alpha{end}") for name, of in entries.items() for end in ENDS}
    return completion_means(run) | {name: math.nan if value is None else float(value) for name, value in known.items()}


def level_of(answer: Answer) -> float:
    """Return the level of the intervals of an answer, which some have as a column."""
    frame, usual = answer.frame, CONFIDENCE_LEVEL
    if len(frame) and "confidence_level" in frame:
        usual = frame["confidence_level"].iloc[0]
    return float(answer.about.get("confidence_level", usual))


def levels_of(runs: Sequence[SavedResults], of: Sequence[str] = ("variance", "alpha")) -> str:
    """Return the levels of the intervals of some answers of runs, as ``"95%"`` or ``"90% or 95%"``."""
    levels = {run.confidence_level for run in runs if "variance" in of}
    levels |= {run.level_of_alpha for run in runs if "alpha" in of and run.alpha is not None}
    return OR.join(map(percent, sorted(levels)))


def several_tables(
    runs: Mapping[str, SavedResults], style: FiguresSection, *, by_value: bool = False
) -> dict[str, Table]:
    """Return the tables of several runs: ``runs``, one row each, and ``variance``, one row per estimator and run."""
    named = {style.labels.get(name, name): run for name, run in runs.items()}
    tables = {"runs": runs_table(named)}
    frame = stacked(list(named.items()), style)
    if frame is not None:
        if by_value:
            place = {label: at for at, label in enumerate(dict.fromkeys(frame["estimator"]))}
            frame = frame.assign(_place=frame["estimator"].map(lambda label: place[label]))
            frame = frame.sort_values(["_place", JUDGED.name], kind="stable", ignore_index=True).drop(columns="_place")
        tables["variance"] = _compared_table(frame, levels_of(list(runs.values()), ["variance"]))
    return tables


def runs_table(runs: Mapping[str, SavedResults]) -> Table:
    """Return one row per run: α, its size, and the mean reward and length of its completions."""
    source = pd.DataFrame([numbers_of_run(run) for run in runs.values()])
    names = {name: heading for name, heading in RUN_HEADINGS.items() if source[name].notna().to_numpy().any()}
    shown = source.assign(truncated_share=source["truncated_share"].round(3))  # which has no interval
    source.insert(0, "run", list(runs))
    source.attrs["metric"] = OR.join(dict.fromkeys(run.metric for run in runs.values()))
    of_alpha, of_means = (levels_of(list(runs.values()), [one]) for one in ("alpha", "variance"))
    of_means = "" if of_means == of_alpha else f", with {of_means} intervals"
    return Table(
        caption=(
            f"Length exponent α of each run with {of_alpha} intervals, with the prompt as the unit; means are over "
            f"prompts{of_means}. No interval compares two runs."
        ),
        heading="run",
        rows=tuple(runs),
        columns={heading: triples_of(shown, name) for name, heading in names.items()},
        source=source,
        label="tab:runs",
        names=names,
        first=tuple(names[name] for name in _NARROW_FIRST if name in names),
    )


def _compared_table(frame: pd.DataFrame, levels: str) -> Table:
    """Return one row per estimator and run."""
    named = frame_in_words(frame)
    # The variance itself has the unit of its metric, the others are ratios.
    shown = [name for name in shown_in("paper") if name != "trace_cov" or OR not in str(frame.attrs.get("metric"))]
    table = variance_table(frame, columns=shown)
    rows = tuple(f"{name}, {run}" for name, run in zip(named["estimator"], frame["run"], strict=True))
    bold = (
        {JUDGED.heading: "Bold: shown to be below 1, corrected for comparing all rows of the run."}
        if table.bold
        else {}
    )
    caption = (
        f"Variance of one prompt group's gradient in each run, {levels} intervals over its prompts; ratios to "
        f"{named.attrs.get('reference', 'the reference')} are those of the same run. No interval compares two runs."
    )
    return replace(
        table,
        caption=" ".join([caption, *bold.values()]),
        heading="estimator, run",
        rows=rows,
        label="tab:variance-of-runs",
        about=bold,
    )
