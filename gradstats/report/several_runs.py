"""Tables of several runs, or of the runs of a sweep: α of each, and every estimator in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.sections import FiguresSection
from gradstats.report.completion_means import ENDS, completion_means
from gradstats.report.figures import chosen_rows
from gradstats.report.frame_in_words import frame_in_words
from gradstats.report.numbers import Triple
from gradstats.report.saved_results import SavedResults
from gradstats.report.tables import Table
from gradstats.report.variance_table import VARIANCE_COLUMNS, variance_table
from gradstats.stats.variance.quantities import JUDGED

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
# Between the metrics of runs that differ in it.
OR = " or "
_NARROW_FIRST = ("alpha", "n_prompts", "n_completions", "alpha_within")


def run_names(runs: Sequence[SavedResults]) -> list[str]:
    """Return the name of each run; those of the folders, as far as it takes, where names are shared."""
    candidates = (
        [run.name for run in runs],
        [run.path.resolve().name for run in runs],
        [str(run.path) for run in runs],
    )
    return next((names for names in candidates if len(set(names)) == len(names)), candidates[-1])


def numbers_of_run(run: SavedResults) -> dict[str, Triple]:
    """Return the numbers of :data:`RUN_HEADINGS`: name → estimate and interval; NaN where a run has none."""
    alpha = cast(Mapping[str, float | None], run.alpha or {})
    within = (run.alpha or {}).get("within_prompt") or {}
    means = completion_means(run)
    found = {"alpha": _triple(alpha, "alpha"), "alpha_within": _triple(within, "alpha")}
    return found | {name: _triple(means, name) for name in RUN_HEADINGS if name not in found}


def levels_of(runs: Sequence[SavedResults]) -> str:
    """Return the levels of the intervals of some runs, as ``"95%"`` or ``"90% or 95%"``."""
    levels = {float(str(run.settings.get("variance.confidence_level", CONFIDENCE_LEVEL))) for run in runs}
    levels |= {run.alpha.get("confidence_level", CONFIDENCE_LEVEL) for run in runs if run.alpha is not None}
    return " or ".join(f"{level:.0%}" for level in sorted(levels))


def several_tables(
    runs: Mapping[str, SavedResults], style: FiguresSection, *, by_value: bool = False
) -> dict[str, Table]:
    """Return the tables of several runs: ``runs``, one row each, and ``variance``, one row per estimator and run.

    Args:
        runs: name → run, in the order of the rows.
        style: which estimators are listed, and under which names, which runs may have as well.
        by_value: sort each estimator's runs by their matched ratio.

    Raises:
        ValueError: when ratios are to different references.
    """
    named = {style.labels.get(name, name): run for name, run in runs.items()}
    tables = {"runs": runs_table(named)}
    frame = _stacked(named, style)
    if frame is not None:
        if by_value:
            place = {label: at for at, label in enumerate(dict.fromkeys(frame["estimator"]))}
            frame = frame.assign(_place=frame["estimator"].map(lambda label: place[label])).sort_values(
                ["_place", JUDGED.name], kind="stable", ignore_index=True
            )
            frame = frame.drop(columns="_place")
        tables["variance"] = compared_table(frame, levels_of(list(runs.values())))
    return tables


def runs_table(runs: Mapping[str, SavedResults]) -> Table:
    """Return one row per run: α, its size, and the mean reward and length of its completions."""
    numbers = {name: numbers_of_run(run) for name, run in runs.items()}
    known = [name for name in RUN_HEADINGS if any(not math.isnan(one[name][0]) for one in numbers.values())]
    rows = [
        {f"{name}{end}": number for name in known for end, number in zip(ENDS, one[name], strict=True)}
        for one in numbers.values()
    ]
    source = pd.DataFrame(rows)
    source.insert(0, "run", list(runs))
    source.attrs["metric"] = _metrics(runs)
    names = {name: RUN_HEADINGS[name] for name in known}
    return Table(
        caption=(
            f"Length exponent α of each run with {levels_of(list(runs.values()))} intervals, with the prompt as the "
            "unit; means are over prompts. No interval compares two runs."
        ),
        heading="run",
        rows=tuple(runs),
        columns={heading: [_rounded(name, one[name]) for one in numbers.values()] for name, heading in names.items()},
        source=source,
        label="tab:runs",
        names=names,
        first=tuple(names[name] for name in _NARROW_FIRST if name in names),
    )


def compared_table(frame: pd.DataFrame, levels: str) -> Table:
    """Return one row per estimator and run.

    Args:
        frame: comparisons under one another, with a column ``run``.
        levels: of the intervals, in words.
    """
    named = frame_in_words(frame)
    # The variance itself has the unit of its metric, the others are ratios.
    shown = [name for name in VARIANCE_COLUMNS if name != "trace_cov" or OR not in str(frame.attrs.get("metric"))]
    table = variance_table(frame, columns=shown)
    rows = tuple(f"{name}, {run}" for name, run in zip(named["estimator"], frame["run"], strict=True))
    bold = {JUDGED.heading: "Bold: the best set of each run."} if table.bold else {}
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


def _stacked(runs: Mapping[str, SavedResults], style: FiguresSection) -> pd.DataFrame | None:
    """Return the comparisons of runs estimator by estimator; None where no run has a row to list."""
    frames = {name: run.variance for name, run in runs.items() if run.variance is not None}
    if not frames:
        return None
    references = list(dict.fromkeys(str(frame.attrs.get("reference")) for frame in frames.values()))
    if len(references) > 1:
        raise ValueError(
            f"the runs' ratios are to different references ({', '.join(references)}), which are different units: "
            "compare each run again with the same `variance: {reference: …}`"
        )
    frame = pd.concat([one.assign(run=name) for name, one in frames.items()], ignore_index=True)
    order = {label: at for at, label in enumerate(dict.fromkeys(frame["estimator"]))}
    frame = frame.sort_values("estimator", key=lambda labels: labels.map(order), kind="stable", ignore_index=True)
    frame.attrs = {"reference": references[0], "metric": _metrics(runs)}
    return chosen_rows(frame, style)


def _metrics(runs: Mapping[str, SavedResults]) -> str:
    """Return the metric of some runs, or all of them."""
    return OR.join(dict.fromkeys(run.metric for run in runs.values()))


def _triple(values: Mapping[str, float | None], name: str) -> Triple:
    """Return an estimate with the ends of its interval; NaN where they are absent."""
    numbers = (values.get(f"{name}{end}") for end in ENDS)
    value, low, high = (math.nan if number is None else float(number) for number in numbers)
    return value, low, high


def _rounded(name: str, triple: Triple) -> Triple:
    """Return a share that has no interval to three digits behind the point."""
    return (round(triple[0], 3), *triple[1:]) if name == "truncated_share" else triple
