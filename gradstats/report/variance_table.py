"""The table of a comparison: each estimator named in words, the best set bold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from gradstats.estimators.display_names import in_words
from gradstats.report.frame_in_words import frame_in_words
from gradstats.report.tables import Table
from gradstats.report.variance_columns import TOGETHER, VarianceColumn, variance_columns
from gradstats.stats.variance.quantities import JUDGED, TARGETS, shown_in
from gradstats.stats.variance.winner import Comparison, best_rows, frame_of, lowest

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

    The best set is bold: the estimators that may have the lowest matched ratio, as the comparison decides pair by pair
    (its column ``in_best_set``). In a frame without that column the lowest is bold where it is known to be the lowest.

    Args:
        comparison: a :class:`gradstats.stats.VarianceComparison` or its frame.
        columns: quantities to show, each with its ``_low`` and ``_high``.
        paired: for a frame without that entry, the comparison whose reference is ``lowest(comparison)``, or its frame;
            without it the lowest is bold only where it is the reference, or in a table of two rows.
        confidence_level: of the intervals, for a :class:`gradstats.stats.VarianceComparison`; a frame has its own.

    Raises:
        ValueError: when the frame lacks a column, or ``paired`` has another reference or other rows.
        KeyError: for a column that is not an estimated quantity.
    """
    frame = frame_of(comparison, confidence_level)
    needed = ["estimator", *(f"{name}{end}" for name in columns for end in ("", "_low", "_high"))]
    missing = [name for name in needed if name not in frame]
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: give what compare() returns")
    bold: frozenset[tuple[int, int]] = frozenset()
    named = frame_in_words(frame)
    shown = variance_columns(named, columns, "paper")
    if JUDGED.name in columns:
        rows = best_rows(frame, None if paired is None else frame_of(paired, confidence_level))
        at = next(at for at, column in enumerate(shown) if column.quantity == JUDGED.name)
        bold = frozenset((row, at) for row in rows)
    sentences = _column_sentences(named.attrs, shown, _bold_sentence(frame, paired is None, bool(bold)))
    headings = {column.quantity: column.heading for column in shown if not column.together}
    return Table(
        caption=" ".join([_variance_caption(named.attrs), *dict.fromkeys(sentences.values())]),
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


def _variance_caption(about: Mapping[Hashable, object]) -> str:
    level = f"{about['confidence_level']:.0%} " if "confidence_level" in about else ""
    n = f" over n = {about['n_prompts']} prompts" if "n_prompts" in about else ""
    groups = f" ({about['n_groups']} groups)" if "n_groups" in about else ""
    caption = (
        f"Variance of one prompt group's gradient, {level}intervals{n}{groups}; ratios "
        f"to {about.get('reference', 'the reference')} are paired."
    )
    if about.get("target") == "importance":
        caption += (
            f" Cosine and bias are judged against the {TARGETS['importance']} gradient of the scored policy; effective "
            f"sample size {about['effective_sample_size']:.0f}."
        )
    return caption


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
