"""The columns of a printed variance comparison: quantities, what holds for all rows at once, and the best set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from gradstats.report.numbers import UNRESOLVED, Triple, triples_of
from gradstats.stats.variance.quantities import QUANTITIES, Place, filled_in

#: What a reader has to know about columns of intervals that hold together.
TOGETHER = "those of all rows lie between these ends at once"
BEST_SET = "best set"


@dataclass(frozen=True)
class VarianceColumn:
    """One column.

    Attributes:
        quantity: name of the quantity.
        heading: with the names of reference and target.
        triples: ``(value, low, high)`` of each row.
        together: whether these are intervals that hold for all rows at once, which have no value of their own.
    """

    quantity: str
    heading: str
    triples: list[Triple]
    together: bool = False


def variance_columns(frame: pd.DataFrame, names: Sequence[str], place: Place) -> list[VarianceColumn]:
    """Return columns of some quantities, each followed by the intervals that hold together where the place has them.

    Args:
        frame: of a comparison; one of an earlier version may lack intervals that hold together.
        names: the quantities.
        place: where the columns go.
    """
    columns = []
    for name in names:
        quantity = QUANTITIES[name]
        columns.append(VarianceColumn(name, filled_in(quantity.heading, frame.attrs), triples_of(frame, name)))
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
