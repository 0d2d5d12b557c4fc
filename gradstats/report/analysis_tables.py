"""The tables of single analyses: the comparison of estimators, its breakdowns, ratios, curves, baselines, critic."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pandas as pd

from gradstats.analyses.alpha import ANALYSIS as ALPHA
from gradstats.analyses.alpha import with_alpha_within
from gradstats.analyses.declaration import Analysis, FurtherTable, Ranking, chosen
from gradstats.analyses.numbers import UNRESOLVED, Triple, displayable_interval
from gradstats.analyses.printed import cells_of
from gradstats.analyses.results import Result
from gradstats.analyses.variance import ANALYSIS as VARIANCE
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.display_names import GREEK, distinct_names, in_words
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.estimators.recipes.trainers import of_trainer
from gradstats.plots.names import LABELS
from gradstats.plots.variance import rows_shown_below
from gradstats.report.tables import Table
from gradstats.stats.length_scaling.alpha import LengthScalingFit
from gradstats.stats.variance.best_set import EQUAL, equal_by_construction
from gradstats.stats.variance.quantities import JUDGED, QUANTITIES, Limits, Place

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
        labels = [
            label if of_trainer(label) else PREFIX + label.removeprefix(PREFIX) for label in map(str, frame["recipe"])
        ]
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


# What decides, and what a reader needs to trust it, comes before what can be computed from it. Where estimators are not
# ranked by their relative noise, the columns of a first screen decide.
_NARROW_FIRST = (JUDGED.name, "cosine", "matched_bias_share", "ratio", "trace_cov")
_BEST = "in_best_set"


def variance_table(
    comparison: Result | pd.DataFrame,
    *,
    columns: Sequence[str] | None = None,
    confidence_level: float | None = None,
) -> Table:
    """Return the variance of estimators, one row each, in the comparison's order, named in words as in figures.

    Bold is a relative noise that is shown to be below that of the reference, corrected for comparing all rows.

    Args:
        comparison: a :class:`gradstats.analyses.VarianceComparison` or its frame.
        columns: quantities to show, each with its ``_low`` and ``_high``.
        confidence_level: of the intervals, for a :class:`gradstats.analyses.VarianceComparison`; a frame has its own.

    Raises:
        ValueError: when the frame lacks a column.
        KeyError: for a column that is not an estimated quantity.
    """
    level = CONFIDENCE_LEVEL if confidence_level is None else confidence_level
    frame = comparison if isinstance(comparison, pd.DataFrame) else comparison.to_frame(level)
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
    numbers, heading = declared.display_frame(named), declared.row_heading
    headings = declared.headings_of(numbers, place)
    declares = {one.name: one for one in declared.columns}
    columns = {shown: _cells(declared, name, numbers) for name, shown in headings.items()}
    short = (
        () if JUDGED.name in headings else tuple(name for name in headings if name in declares and declares[name].short)
    )
    sentences = {shown: declares[name].sentence(frame) for name, shown in headings.items() if name in declares}
    sentences = {shown: sentence for shown, sentence in sentences.items() if sentence}
    # Bold only where the caption says of what: a single estimator is compared with none.
    bold = rows_shown_below(frame) if _BEST in declares and headings.get(JUDGED.name) in sentences else []
    return Table(
        caption=" ".join(filter(None, [declared.caption(named), *dict.fromkeys(sentences.values())])),
        heading=heading if isinstance(heading, str) else heading(named),
        rows=tuple(str(declared.row_name(row)) for row in numbers.to_dict("records")),
        columns=columns,
        source=frame,
        bold=frozenset((row, list(headings).index(JUDGED.name)) for row in bold),
        label=declared.label,
        names=headings,
        first=tuple(headings[name] for name in (*short, *_NARROW_FIRST) if name in headings),
        about=sentences,
    )


def equal_rows_once(table: Table) -> Table:
    """Return a table of estimators in which those that are equal by construction share a row, by all their names.

    All of their cells are equal; the numbers in full keep a row for each.
    """
    cells = np.array([list(column) for column in table.columns.values()], dtype=float)
    groups = equal_by_construction(cells.transpose(1, 0, 2).reshape(len(table.rows), -1).tolist())
    # Of what has no numbers no one knows whether it is equal.
    groups = sorted(
        part for group in groups for part in ([group] if np.isfinite(cells[:, group]).any() else [[at] for at in group])
    )
    places = {group[0]: row for row, group in enumerate(groups)}
    return replace(
        table,
        rows=tuple(" = ".join(table.rows[at] for at in group) for group in groups),
        columns={name: [column[at] for at in places] for name, column in table.columns.items()},
        bold=frozenset((places[row], at) for row, at in table.bold if row in places),
    )


def alpha_table(
    fits: Mapping[str, LengthScalingFit | pd.DataFrame], *, confidence_level: float = CONFIDENCE_LEVEL
) -> Table:
    """Return the length exponent of one or several fits.

    Args:
        fits: name → :class:`gradstats.stats.LengthScalingFit`, or the frame of an answer on α.
        confidence_level: of the intervals of fits; a frame has its own.

    Raises:
        ValueError: when ``fits`` is empty.
    """
    if not fits:
        raise ValueError("fits is empty: give at least one name and its fit")
    rows = [with_alpha_within(_frame_of_fit(fit, confidence_level)) for fit in fits.values()]
    metric = " or ".join(dict.fromkeys(row.attrs["metric"] for row in rows))
    params = {row.attrs.get("params") for row in rows}
    for row in rows:
        row.attrs = {}  # which cannot be compared when frames are joined
    frame = pd.concat(rows, ignore_index=True)
    frame.insert(0, "run", list(fits))
    frame.attrs |= {"metric": metric} | ({"params": params.pop()} if len(params) == 1 else {})
    return table_of(ALPHA, frame)


def _frame_of_fit(fit: LengthScalingFit | pd.DataFrame, confidence_level: float) -> pd.DataFrame:
    """Return the frame of a fit, whose ``.attrs`` state α within prompts."""
    if isinstance(fit, pd.DataFrame):
        return fit
    frame = fit.to_frame(confidence_level)
    frame.attrs["metric"] = fit.metric
    with warnings.catch_warnings():  # what the fit lacks was said when it was made
        warnings.simplefilter("ignore", UserWarning)
        inner = fit.within_prompts()
        if inner is not None:
            low, high = inner.confidence_interval(confidence_level)
            frame.attrs["within_prompt"] = {"alpha": inner.alpha, "alpha_low": low, "alpha_high": high}
    return frame


def _cells(declared: Analysis | FurtherTable, name: str, numbers: pd.DataFrame) -> list[Triple] | list[str]:
    """Return the cells of a column: estimates with the ends of their intervals, or words."""
    if name == _BEST:
        judged = zip(numbers[_BEST].eq(True), numbers[_BEST].notna(), strict=True)
        return [("yes" if inside else "no") if known else UNRESOLVED for inside, known in judged]
    if name.endswith("_simultaneous"):
        # What is known exactly has no interval: it is its value.
        low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
        numbers = numbers.assign(**{name: low.where(low == high)})
    return cells_of(numbers, name, declared.limits_of(name))


_SEVENTHS = 1e-4  # how exactly a scale is a fraction of small numbers
_LARGEST_DENOMINATOR = 64


def joined_name(names: Sequence[str], scale: float, width: int) -> str:
    """Name estimators that are equal up to a scale in at most so many letters.

    >>> joined_name(["rloo", "group_mean", "dr_grpo"], 1.0, 80), joined_name(["rloo", "group_mean", "dr_grpo"], 1.0, 20)
    ('rloo = group_mean = dr_grpo', 'rloo and 2 equal')
    """
    if len(names) > 1:
        at = "" if abs(scale - 1) < _SEVENTHS else f" at {_as_fraction(scale)}"
        full = f"{' = '.join(names)}{at}"
        return full if len(full) <= width else f"{shortened(names[0], width - 12)} and {len(names) - 1} equal"
    return shortened(names[0], width)


def _as_fraction(scale: float) -> str:
    found = Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)
    return str(found) if abs(float(found) - scale) < _SEVENTHS * scale else f"{scale:.3g}"


def shortened(name: str, width: int) -> str:
    """Cut a name to a width; what stands in brackets stays in brackets.

    >>> shortened("length_weighted(alpha=within_prompt, loo=True)", 30)
    'length_weighted(alpha=within…)'
    """
    if len(name) <= width:
        return name
    end = "…)" if name.endswith(")") else "…"
    return name[: width - len(end)].rstrip(" ,_=") + end


@dataclass(frozen=True)
class ShortRow:
    """A row of a short table.

    Attributes:
        names: of the estimators that share it, or of the row itself.
        scale: of the first estimator's gradient over that of the others.
        rest: what distinguishes the row from others of the same estimators, such as a bin; "" where there is one.
        cells: the columns.
        block: the number of its estimators, whose rows follow one another.
        at: its place, or that of the first of its estimators, in the frame.
    """

    names: tuple[str, ...]
    scale: float
    rest: str
    cells: tuple[str, ...]
    block: int = 0
    at: int = 0

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
    numbers = declared.display_frame(frame).reset_index(drop=True)
    wanted = declared.summary_columns(numbers)
    of_scale = "" if ranking is None else declared.headings_of(numbers).get(ranking.scale, "")
    places = {
        heading: at
        for at, (heading, cells) in enumerate(table.columns.items(), 1)
        if heading in wanted and _says_something(cells, exactly=heading != of_scale)
    }
    headings, texts = table.cells("plain")
    rows = [
        ShortRow((name,), 1.0, "", tuple(row[place] for place in places.values()), at=at)
        for at, (name, row) in enumerate(zip(table.rows, texts, strict=True))
    ]
    shown, in_blocks = tuple(headings[at] for at in places.values()), False
    if ranking is not None and {ranking.column, ranking.scale or ranking.column} <= set(numbers):
        compared = cast(list[Sequence[Triple]], [table.columns[one] for one in places if one != of_scale])
        rows, in_blocks = _ranked(rows, numbers, declared, ranking, compared), ranking.in_blocks
    return ShortTable(table.heading, shown, tuple(rows), in_blocks)


def _says_something(cells: Sequence[Triple | str], *, exactly: bool) -> bool:
    """Return whether a column holds a number; one that is known exactly counts only where that is asked for."""
    triples = [cell for cell in cells if not isinstance(cell, str)]
    return any(any(map(math.isfinite, triple)) and (exactly or triple[1] != triple[2]) for triple in triples)


def _ranked(
    rows: Sequence[ShortRow],
    numbers: pd.DataFrame,
    declared: Analysis | FurtherTable,
    ranking: Ranking,
    columns: Sequence[Sequence[Triple]],
) -> list[ShortRow]:
    """Return the rows in order of what is judged, or estimator by estimator with the reference first.

    Estimators that are equal in all columns share their rows.
    """
    records, limits = numbers.to_dict("records"), declared.limits_of(ranking.column)
    places: dict[str, list[int]] = {}
    for at, label in enumerate(numbers["estimator"].astype(str)):
        places.setdefault(label, []).append(at)
    usual = next((label for label in places if label in (_REFERENCE, in_words(_REFERENCE))), next(iter(places), ""))
    reference = str(numbers.attrs.get("reference", usual))
    # What distinguishes a row from the others of its estimator.
    rest = [str(declared.row_name({**row, "estimator": ""})) for row in records]
    judged = [_judged(row, ranking, limits) for row in records]
    comparable: dict[object, list[str]] = {}
    for label, of_label in places.items():
        # Of what is not resolved no one knows whether it is equal.
        alone = "" if any(math.isfinite(judged[at]) for at in of_label) else label
        comparable.setdefault((alone, *(rest[at] for at in of_label)), []).append(label)
    groups = []
    for labels in comparable.values():
        flat = [[number for at in places[label] for column in columns for number in column[at]] for label in labels]
        equal = equal_by_construction(flat)
        groups += [sorted((labels[at] for at in group), key=lambda label: label != reference) for group in equal]
    groups.sort(
        key=lambda names: (ranking.in_blocks and reference not in names, min(judged[at] for at in places[names[0]]))
    )
    ranked = []
    for block, names in enumerate(groups):
        scale = _common_scale([_scale(records[places[name][0]], ranking) for name in names])
        ranked += [ShortRow(tuple(names), scale, rest[at], rows[at].cells, block, at) for at in places[names[0]]]
    return ranked if ranking.in_blocks else sorted(ranked, key=lambda row: judged[row.at])


def _judged(row: Mapping[Hashable, Any], ranking: Ranking, limits: Limits) -> float:
    """Return what a row is sorted by: the estimate or else an end, so that the best comes first; ∞ for none."""
    value, low, high = (float(row[f"{ranking.column}{end}"]) for end in ("", "_low", "_high"))
    value = next(filter(math.isfinite, displayable_interval(value, low, high, limits)), math.nan)
    return math.inf if math.isnan(value) else -value if ranking.most_first else value


def _scale(row: Mapping[Hashable, Any], ranking: Ranking) -> float:
    if not ranking.scale:
        return 1.0
    scale = float(row[ranking.scale])
    # An unbiased estimate of a variance may be negative.
    return math.sqrt(scale) if ranking.scale == "ratio" and scale > 0 else scale


def _common_scale(scales: Sequence[float]) -> float:
    """Return the first of some scales over that of all others; 1 where these differ or are not known."""
    relative = [scales[0] / scale for scale in scales[1:] if scale > 0]
    common = relative and all(math.isclose(one, relative[0], rel_tol=EQUAL) for one in relative)
    return relative[0] if common else 1.0
