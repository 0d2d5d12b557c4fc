"""The tables of single analyses: the comparison of estimators, its breakdowns, ratios, curves, baselines, critic."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gradstats.analyses.declaration import Analysis, FurtherTable, Ranking
from gradstats.analyses.numbers import UNRESOLVED, Triple, readable, triples_of
from gradstats.analyses.variance import ANALYSIS as VARIANCE
from gradstats.analyses.variance import Comparison, best_rows, frame_of, lowest
from gradstats.estimators.display_names import GREEK, distinct_names, in_words
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.plots.names import LABELS
from gradstats.plots.quantities import JUDGED, QUANTITIES, Limits, Place, filled_in, shown_in
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


#: What a reader has to know about columns of intervals that hold together.
TOGETHER = "between these ends all rows lie at once"
BEST_SET = "best set"


@dataclass(frozen=True)
class VarianceColumn:
    """One column of the comparison."""

    quantity: str
    heading: str  # with the names of reference and target
    triples: list[Triple]
    together: bool = False  # whether the intervals hold for all rows at once; such have no value of their own


def variance_columns(frame: pd.DataFrame, names: Sequence[str], place: Place) -> list[VarianceColumn]:
    """Return columns of some quantities, each followed by the intervals that hold together where the place has them."""
    columns = []
    for name in names:
        quantity = QUANTITIES[name]
        triples = [readable(*triple, quantity.limits) for triple in triples_of(frame, name)]
        columns.append(VarianceColumn(name, filled_in(quantity.heading, frame.attrs), triples))
        ends = [f"{name}_simultaneous_{end}" for end in ("low", "high")]
        if place in quantity.together_in and set(ends) <= set(frame):
            # What is known exactly has no interval: it is its value.
            pairs = frame[ends].to_numpy(dtype=float).tolist()
            triples = [(low if low == high else math.nan, low, high) for low, high in pairs]
            columns.append(VarianceColumn(name, quantity.together_heading, triples, together=True))
    return columns


def best_set_marks(frame: pd.DataFrame) -> list[str] | None:
    """Return ``yes`` or ``no`` for each row, a dash where it was not judged; None for a frame without a best set."""
    if "in_best_set" not in frame:
        return None
    judged = zip(frame["in_best_set"].eq(True), frame["in_best_set"].notna(), strict=True)
    return [("yes" if inside else "no") if known else UNRESOLVED for inside, known in judged]


VARIANCE_COLUMNS = shown_in("paper")
#: Entry of a frame's ``.attrs``: how many estimators were compared, where only some are listed.
COMPARED_ROWS = "n_compared"
# What decides, and what a reader needs to trust it, comes before what can be computed from it.
_NARROW_FIRST = (JUDGED.name, "cosine", "matched_bias_share", "ratio", "trace_cov")


def variance_table(
    comparison: Comparison | pd.DataFrame,
    *,
    columns: Sequence[str] = VARIANCE_COLUMNS,
    paired: Comparison | pd.DataFrame | None = None,
    confidence_level: float | None = None,
) -> Table:
    """Return the variance of estimators, one row each, in the comparison's order, named in words as in figures.

    The best set is bold: the estimators that may have the lowest relative noise, as the comparison decides pair by pair
    (its column ``in_best_set``). In a frame without that column the lowest is bold where it is known to be the lowest.

    Args:
        comparison: a :class:`gradstats.analyses.VarianceComparison` or its frame.
        columns: quantities to show, each with its ``_low`` and ``_high``.
        paired: for a frame without that entry, the comparison whose reference is ``lowest(comparison)``, or its frame;
            without it the lowest is bold only where it is the reference, or in a table of two rows.
        confidence_level: of the intervals, for a :class:`gradstats.analyses.VarianceComparison`; a frame has its own.

    Raises:
        ValueError: when the frame lacks a column, or ``paired`` has another reference or other rows.
        KeyError: for a column that is not an estimated quantity.
    """
    frame = frame_of(comparison, confidence_level)
    needed = ["estimator", *(f"{name}{end}" for name in columns for end in ("", "_low", "_high"))]
    missing = [name for name in needed if name not in frame]
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: give what compare() returns")
    named, bold = frame_in_words(frame), frozenset[tuple[int, int]]()
    shown = variance_columns(named, columns, "paper")
    if JUDGED.name in columns:
        rows = best_rows(frame, None if paired is None else frame_of(paired, confidence_level))
        at = next(at for at, column in enumerate(shown) if column.quantity == JUDGED.name)
        bold = frozenset((row, at) for row in rows)
    sentences = _column_sentences(named.attrs, shown, _bold_sentence(frame, paired is None, bool(bold)))
    headings = {column.quantity: column.heading for column in shown if not column.together}
    return Table(
        caption=" ".join([VARIANCE.caption(named), *dict.fromkeys(sentences.values())]),
        heading="estimator",
        rows=tuple(_row_names(named)),
        columns={column.heading: column.triples for column in shown},
        source=frame,
        bold=bold,
        label="tab:variance",
        names=headings | {f"{column.quantity}_simultaneous": column.heading for column in shown if column.together},
        first=tuple(headings[name] for name in _NARROW_FIRST if name in headings),
        about=sentences,
    )


def _row_names(frame: pd.DataFrame) -> list[str]:
    names = [str(name) for name in frame["estimator"]]
    if "group_size" in frame and len(set(frame["group_size"].dropna())) > 1:
        return [f"{name}, N = {size:g}" for name, size in zip(names, frame["group_size"], strict=True)]
    return names


def _bold_sentence(frame: pd.DataFrame, decided: bool, has_bold: bool) -> str:
    heading = JUDGED.heading
    if lowest(frame) is None:
        return f"No {heading} is resolved."
    if decided and "in_best_set" in frame:
        if pd.isna(frame["in_best_set"].to_numpy()).any():
            return (
                f"Bold: the best set, which holds the lowest {heading} of the rows that have one at this level (all "
                "pairs of these compared); the others are not judged."
            )
        compared = frame.attrs.get(COMPARED_ROWS, len(frame))
        rows = "rows" if compared == len(frame) else f"the {compared} estimators of the comparison"
        best = f"the best set, which holds the lowest {heading} at this level (all pairs of {rows} compared)."
        return f"Bold: {best}" if has_bold else f"No row is of {best}"
    beyond_doubt = frame.attrs.get("lowest_beyond_doubt")
    if beyond_doubt is not None and not has_bold:
        return f"The lowest {heading} is that of {in_words(str(beyond_doubt))}, which is not listed."
    if has_bold:
        return f"Bold: lowest {heading}, where the paired interval against every other row excludes a tie."
    return f"No row is bold: the paired intervals leave a tie for the lowest {heading}."


def _column_sentences(
    about: Mapping[Hashable, object], shown: Sequence[VarianceColumn], bold_sentence: str
) -> dict[str, str]:
    """Return what the caption says of single columns: heading → sentence."""
    sentences = {}
    for column in shown:
        if column.together:
            sentences[column.heading] = f"{column.heading.capitalize()}: {TOGETHER}."
        elif column.quantity in ("bias_share", "matched_bias_share") and "prompts_per_batch" in about:
            sentences[column.heading] = f"The share of bias is that of a batch of {about['prompts_per_batch']} prompts."
        elif column.quantity == JUDGED.name:
            sentences[column.heading] = bold_sentence
    return sentences


def analysis_table(analysis: Analysis | FurtherTable, frame: pd.DataFrame) -> Table:
    """Return the table of an analysis from the frame of its result, as it declares it."""
    if analysis.as_comparison:  # a run of an earlier version may lack some columns
        known = [name for name in VARIANCE_COLUMNS if {name, f"{name}_low", f"{name}_high"} <= set(frame)]
        return replace(variance_table(frame, columns=known), label=analysis.label)
    heading, columns = analysis.row_heading, analysis.headings_of(frame)
    numbers = analysis.shown(frame)
    triples = {
        shown: [
            readable(value, low, high, analysis.limits_of(name))
            for value, low, high in numbers.reindex(columns=analysis.names_of_ends(name)).to_numpy(float).tolist()
        ]
        for name, shown in columns.items()
    }
    return Table(
        analysis.caption(frame),
        heading if isinstance(heading, str) else heading(frame),
        tuple(str(analysis.row_name(row)) for row in numbers.to_dict("records")),
        triples,
        frame,
        label=analysis.label or f"tab:{analysis.name}",
        names=columns,
    )


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


def plain_short_table(table: Table) -> ShortTable:
    """Return a table with its rows and columns as they are."""
    (heading, *headings), rows = table.cells("plain")
    return ShortTable(heading, tuple(headings), tuple(ShortRow((row[0],), 1.0, "", tuple(row[1:])) for row in rows))


# The estimator that others are compared with, where a table does not say.
_REFERENCE = "rloo"
# Stands for the estimator in the name of a row.
_ESTIMATOR = "\0"


def short_table(declared: Analysis | FurtherTable, frame: pd.DataFrame, whole: Table | None = None) -> ShortTable:
    """Return the short table of an analysis: its short columns, without those that hold no value.

    Where the analysis ranks its rows, estimators that are equal up to a scale share theirs, and rows are sorted by what
    is judged.

    Args:
        declared: the analysis, or a further table of one.
        frame: of its answer.
        whole: the table of this frame, where it has been made.
    """
    table, ranking = whole or analysis_table(declared, frame), declared.ranking
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
    if ranking is None:
        rows = tuple(ShortRow((name,), 1.0, "", row) for name, row in zip(table.rows, cells, strict=True))
        return ShortTable(table.heading, shown, rows)
    numbers = declared.shown(frame).reset_index(drop=True)
    compared = [table.columns[name] for name in known if name != of_scale]
    estimators = _ranked_estimators(numbers, declared, ranking, compared)
    chosen = [(block, one, at) for block, one in enumerate(estimators) for at in one.rows]
    if not ranking.in_blocks:
        chosen.sort(key=lambda row: row[1].judged[row[1].rows.index(row[2])])
    rows = tuple(ShortRow(one.names, one.scale, one.rest[at], cells[at], block) for block, one, at in chosen)
    return ShortTable(table.heading, shown, rows, ranking.in_blocks)


def _says_something(triples: Sequence[Triple], *, exactly: bool) -> bool:
    """Return whether a column holds a number; one that is known exactly counts only where that is asked for."""
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
