"""The tables of single analyses: the comparison of estimators, its breakdowns, ratios, curves, baselines, critic."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pandas as pd

from gradstats.analyses.declaration import Analysis, FurtherTable, Ranking, chosen
from gradstats.analyses.numbers import UNRESOLVED, Triple, readable
from gradstats.analyses.variance import ANALYSIS as VARIANCE
from gradstats.analyses.variance import Comparison, frame_of
from gradstats.estimators.display_names import GREEK, distinct_names, in_words
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.plots.names import LABELS
from gradstats.plots.quantities import JUDGED, QUANTITIES, Limits, Place
from gradstats.plots.variance import rows_in_best_set
from gradstats.report.tables import Table
from gradstats.report.verdict import common_scale, joined_name, shortened
from gradstats.stats.variance.best_set import equal_by_construction

# Entries of attrs that hold labels of estimators, as the reference of ratios.
_ENTRIES = ("reference", "best_learned", "curve")
_LETTER = re.compile(rf"\b({'|'.join(GREEK)})\b")


def frame_in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose estimators are named in words, or as its ``.attrs["labels"]`` says.

    Those of the columns ``estimator`` and ``recipe`` are, and those of the entries of ``.attrs`` that captions and
    headings print, as the reference of ratios. No two estimators of a column share a name. Parameters that vary, or
    that were learned, are written as letters.
    """
    entries = {name: str(frame.attrs[name]) for name in _ENTRIES if isinstance(frame.attrs.get(name), str)}
    estimators = list(map(str, frame["estimator"])) if "estimator" in frame else []
    chosen = frame.attrs.get(LABELS)
    names = distinct_names([*estimators, *entries.values()], chosen)
    named = frame.copy()
    if estimators:
        named["estimator"] = [names[label] for label in estimators]
    if "recipe" in frame:
        # Names of recipes, which label a recipe behind its prefix.
        labels = [PREFIX + str(label).removeprefix(PREFIX) for label in frame["recipe"]]
        recipes = distinct_names(labels, chosen)
        named["recipe"] = [recipes[label] for label in labels]
    if "parameters" in frame:
        named["parameters"] = list(_in_letters(frame["parameters"].fillna("").astype(str)))
    named.attrs = frame.attrs | {name: names[label] for name, label in entries.items()}
    if isinstance(frame.attrs.get("parameter"), str):
        (named.attrs["parameter"],) = _in_letters([frame.attrs["parameter"].replace("_", " ")])
    return named


def _in_letters(texts: Iterable[str]) -> Iterable[str]:
    """Yield texts with Greek letters, and with minus signs before numbers."""
    return (re.sub(r"(?<!\w)-(?=\d)", "−", _LETTER.sub(lambda found: GREEK[found[0]], text)) for text in texts)


# What decides, and what a reader needs to trust it, comes before what can be computed from it.
_NARROW_FIRST = (JUDGED.name, "cosine", "matched_bias_share", "ratio", "trace_cov")
_BEST = "in_best_set"


def variance_table(
    comparison: Comparison | pd.DataFrame,
    *,
    columns: Sequence[str] | None = None,
    confidence_level: float | None = None,
) -> Table:
    """Return the variance of estimators, one row each, in the comparison's order, named in words as in figures.

    The best set is bold: the estimators that may have the lowest relative noise, as the comparison decides pair by pair
    (its column ``in_best_set``).

    Args:
        comparison: a :class:`gradstats.analyses.VarianceComparison` or its frame.
        columns: quantities to show, each with its ``_low`` and ``_high``.
        confidence_level: of the intervals, for a :class:`gradstats.analyses.VarianceComparison`; a frame has its own.

    Raises:
        ValueError: when the frame lacks a column.
        KeyError: for a column that is not an estimated quantity.
    """
    frame = frame_of(comparison, confidence_level)
    declared = VARIANCE
    if columns is not None:
        headings = {name: QUANTITIES[name].heading for name in columns}
        declared = replace(VARIANCE, columns=chosen(VARIANCE.columns, headings))
        needed = ["estimator", *(f"{name}{end}" for name in columns for end in ("", "_low", "_high"))]
        missing = [name for name in needed if name not in frame]
        if missing:
            raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: give what compare() returns")
    return table_of(declared, frame)


def table_of(
    declared: Analysis | FurtherTable, frame: pd.DataFrame, place: Place = "paper", *, in_words: bool = True
) -> Table:
    """Return the table of an answer, as its question declares it.

    Args:
        declared: the question, or a table beside it.
        frame: of the answer.
        place: where it is shown, which decides on its columns.
        in_words: name estimators in words, as figures do; otherwise by their labels.
    """
    named = frame_in_words(frame) if in_words else frame
    numbers, heading = declared.shown(named), declared.row_heading
    headings = declared.headings_of(named, place)
    declares = {one.name: one for one in declared.columns}
    columns = {shown: _cells(declared, name, numbers) for name, shown in headings.items()}
    sentences = {shown: declares[name].sentence(frame) for name, shown in headings.items() if name in declares}
    sentences = {shown: sentence for shown, sentence in sentences.items() if sentence}
    bold = [] if _BEST not in declares or JUDGED.name not in headings else rows_in_best_set(frame)
    return Table(
        caption=" ".join(filter(None, [declared.caption(named), *dict.fromkeys(sentences.values())])),
        heading=heading if isinstance(heading, str) else heading(named),
        rows=tuple(str(declared.row_name(row)) for row in numbers.to_dict("records")),
        columns=columns,
        source=frame,
        bold=frozenset((row, list(headings).index(JUDGED.name)) for row in bold),
        label=declared.label,
        names=headings,
        first=tuple(headings[name] for name in _NARROW_FIRST if name in headings),
        about=sentences,
    )


def _cells(declared: Analysis | FurtherTable, name: str, numbers: pd.DataFrame) -> list[Triple] | list[str]:
    """Return the cells of a column: estimates with the ends of their intervals, or words."""
    if name == _BEST:
        judged = zip(numbers[_BEST].eq(True), numbers[_BEST].notna(), strict=True)
        return [("yes" if inside else "no") if known else UNRESOLVED for inside, known in judged]
    if name.endswith("_simultaneous"):
        # What is known exactly has no interval: it is its value.
        pairs = numbers[[f"{name}_low", f"{name}_high"]].to_numpy(dtype=float).tolist()
        return [(low if low == high else math.nan, low, high) for low, high in pairs]
    limits = declared.limits_of(name)
    ends = ["low", "high"] if f"{name}_low" not in numbers and "low" in numbers else [f"{name}_low", f"{name}_high"]
    triples = numbers.reindex(columns=[name, *ends]).to_numpy(dtype=float).tolist()
    return [readable(value, low, high, limits) for value, low, high in triples]


@dataclass(frozen=True)
class ShortRow:
    """A row of a short table.

    Attributes:
        names: of the estimators that share it, or of the row itself.
        scale: of the first estimator's gradient over that of the others.
        rest: what distinguishes the row from others of the same estimators, such as a bin; "" where there is one.
        cells: the columns.
        block: the number of its estimators, whose rows follow one another.
    """

    names: tuple[str, ...]
    scale: float
    rest: str
    cells: tuple[str, ...]
    block: int = 0

    def estimators(self, width: int) -> str:
        """Name the estimators in at most so many letters."""
        return joined_name(self.names, self.scale, width)

    def name(self, width: int) -> str:
        """Name the row in at most so many letters, of which the estimators give way to the rest."""
        return shortened(f"{self.estimators(width - len(self.rest))}{self.rest}", width)


@dataclass(frozen=True)
class ShortTable:
    """The table of a first screen and of a section of the page: what answers, in few rows and columns."""

    heading: str
    headings: tuple[str, ...]
    rows: tuple[ShortRow, ...]
    in_blocks: bool = False

    @property
    def along(self) -> bool:
        """Whether the rows are rising values of a parameter, as those of a curve."""
        try:
            values = [float(row.names[0].replace("−", "-")) for row in self.rows]
        except ValueError:
            return False
        return len(values) > 2 and values == sorted(values)

    def cells(self, width: int) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows as text, with names of at most so many letters."""
        return [self.heading, *self.headings], [[row.name(width), *row.cells] for row in self.rows]


# The estimator that others are compared with, where a table does not say.
_REFERENCE = "rloo"
# Stands for the estimator in the name of a row.
_ESTIMATOR = "\0"


def short_table(declared: Analysis | FurtherTable, frame: pd.DataFrame, whole: Table | None = None) -> ShortTable:
    """Return the short table of an analysis: its short columns, without those that hold no value.

    Where the analysis ranks its rows, estimators that are equal up to a scale share theirs, and rows are sorted by what
    is judged; a frame that lacks what they are ranked by, as one of an earlier version, keeps its order.

    Args:
        declared: the analysis, or a further table of one.
        frame: of its answer.
        whole: the table of this frame, where it has been made.
    """
    table, ranking = whole or table_of(declared, frame, "terminal", in_words=False), declared.ranking
    headings, texts = table.cells("plain")
    wanted = declared.first_shown(frame)
    of_scale = "" if ranking is None else declared.headings_of(frame).get(ranking.scale, "")
    known = {
        name: at
        for at, (name, triples) in enumerate(table.columns.items(), 1)
        if name in wanted and _says_something(triples, exactly=name != of_scale)
    }
    shown, cells = (
        tuple(headings[at] for at in known.values()),
        [tuple(row[at] for at in known.values()) for row in texts],
    )
    numbers = declared.shown(frame).reset_index(drop=True)
    if ranking is None or not {ranking.column, ranking.scale or ranking.column} <= set(numbers):
        rows = tuple(ShortRow((name,), 1.0, "", row) for name, row in zip(table.rows, cells, strict=True))
        return ShortTable(table.heading, shown, rows)
    compared = cast(list[Sequence[Triple]], [table.columns[name] for name in known if name != of_scale])
    estimators = _ranked_estimators(numbers, declared, ranking, compared)
    chosen = [(block, one, at) for block, one in enumerate(estimators) for at in one.rows]
    if not ranking.in_blocks:
        chosen.sort(key=lambda row: row[1].judged[row[1].rows.index(row[2])])
    rows = tuple(ShortRow(one.names, one.scale, one.rest[at], cells[at], block) for block, one, at in chosen)
    return ShortTable(table.heading, shown, rows, ranking.in_blocks)


def _says_something(cells: Sequence[Triple | str], *, exactly: bool) -> bool:
    """Return whether a column holds a number; one that is known exactly counts only where that is asked for."""
    triples = [cell for cell in cells if not isinstance(cell, str)]
    return any(any(map(math.isfinite, triple)) and (exactly or triple[1] != triple[2]) for triple in triples)


@dataclass(frozen=True)
class _Ranked:
    """Estimators with equal numbers, and the rows of the first of them."""

    names: tuple[str, ...]
    scale: float
    rows: tuple[int, ...]
    rest: Mapping[int, str]  # of the name of each row
    judged: tuple[float, ...]  # of each row, the least first


def _ranked_estimators(
    numbers: pd.DataFrame, declared: Analysis | FurtherTable, ranking: Ranking, columns: Sequence[Sequence[Triple]]
) -> list[_Ranked]:
    """Return the estimators in order of what is judged, the reference first where their rows stay together."""
    labels = list(dict.fromkeys(numbers["estimator"].astype(str)))
    usual = next((label for label in labels if label in (_REFERENCE, in_words(_REFERENCE))), next(iter(labels), ""))
    reference = str(numbers.attrs.get("reference", usual))
    records = numbers.to_dict("records")
    rest = {
        at: str(declared.row_name({**row, "estimator": _ESTIMATOR})).removeprefix(_ESTIMATOR)
        for at, row in enumerate(records)
    }
    of_each: dict[str, list[int]] = {label: [] for label in labels}
    for at, row in enumerate(records):
        of_each[str(row["estimator"])].append(at)
    limits = declared.limits_of(ranking.column)
    judged = {at: _judged(row, ranking, limits) for at, row in enumerate(records)}
    scales = {label: _scale(records[rows[0]], ranking) for label, rows in of_each.items()}
    alike: dict[object, list[str]] = {}
    for label, rows in of_each.items():
        # Of what is not resolved no one knows whether it is equal.
        known = "" if any(math.isfinite(judged[at]) for at in rows) else label
        alike.setdefault((known, *(rest[at] for at in rows)), []).append(label)
    found = []
    for among in alike.values():
        flat = [[number for at in of_each[label] for column in columns for number in column[at]] for label in among]
        for group in equal_by_construction(flat):
            names = sorted((among[at] for at in group), key=lambda label: label != reference)
            rows = tuple(of_each[names[0]])
            scale = common_scale([scales[name] for name in names])
            found.append(_Ranked(tuple(names), scale, rows, rest, tuple(judged[at] for at in rows)))
    return sorted(found, key=lambda one: (ranking.in_blocks and reference not in one.names, min(one.judged)))


def _judged(row: Mapping[Hashable, Any], ranking: Ranking, limits: Limits) -> float:
    """Return what a row is sorted by: the estimate or else an end, so that the best comes first; ∞ for none."""
    value, low, high = (float(row[f"{ranking.column}{end}"]) for end in ("", "_low", "_high"))
    value = next(filter(math.isfinite, readable(value, low, high, limits)), math.nan)
    return math.inf if math.isnan(value) else -value if ranking.most_first else value


def _scale(row: Mapping[Hashable, Any], ranking: Ranking) -> float:
    return float(row[ranking.scale]) if ranking.scale else 1.0
