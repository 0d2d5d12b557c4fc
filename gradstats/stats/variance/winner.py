"""Which estimator has the lowest variance at matched signal, and whether that is beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators.estimator import Weighting
from gradstats.stats.variance.pooled_completions import PooledCompletions, Weighted
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.row import EstimatorVariance


@runtime_checkable
class Comparison(Protocol):
    """What has the frame of a variance comparison, at any level."""

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row an estimator."""
        ...


@dataclass(frozen=True)
class PairedWithLowest:
    """The completions of a comparison, kept to pair every estimator with the lowest one.

    The intervals of a comparison are paired with its reference alone. That the lowest estimator is lower than another
    one takes the interval of their own ratio, which is made here on demand, estimator by estimator.

    Attributes:
        pool: the completions and their scores.
        estimators: the estimators compared.
        target: what bias is judged against.
    """

    pool: PooledCompletions
    estimators: tuple[Weighting, ...]
    target: Weighted
    _references: dict[str, Weighted] = field(default_factory=dict, repr=False, compare=False)
    _rows: dict[tuple[str, str], EstimatorVariance] = field(default_factory=dict, repr=False, compare=False)

    def all_above(self, frame: pd.DataFrame, best: str, confidence_level: float) -> bool | None:
        """Whether every other estimator's paired interval lies above the lowest estimator.

        Returns:
            None for a batch-level estimator, with which nothing is paired.
        """
        by_label = {estimator.label: estimator for estimator in self.estimators}
        if by_label[best].across_groups:
            return None
        # The closest comes first: the first tie settles the question.
        # An estimator whose inputs were not measured has a row and no part in the comparison.
        listed = [str(label) for label in frame.sort_values(JUDGED.name)["estimator"]]
        others = [label for label in listed if label != best and label in by_label]
        return all(
            self._row(by_label, label, best).intervals(confidence_level)[JUDGED.name][1] > 1.0 for label in others
        )

    def _row(self, by_label: dict[str, Weighting], label: str, best: str) -> EstimatorVariance:
        if best not in self._references:
            self._references[best] = self.pool.local(by_label[best])
        if (label, best) not in self._rows:
            self._rows[label, best] = self.pool.row(
                by_label[label], by_label[best], self._references[best], self.target
            )
        return self._rows[label, best]


def lowest_beyond_doubt(frame: pd.DataFrame, paired: PairedWithLowest | None, confidence_level: float) -> str | None:
    """Label of the estimator whose variance at matched signal is the lowest, where no paired interval leaves a tie."""
    best = lowest(frame)
    if best is None or len(frame) < 2 or frame["estimator"].duplicated().any():
        return None
    if best != frame.attrs.get("reference") and paired is not None:
        above = paired.all_above(frame, best, confidence_level)
        if above is not None:
            return best if above else None
    return best if clear_winner(frame) is not None else None


def lowest(comparison: Comparison | pd.DataFrame) -> str | None:
    """Label of the estimator with the lowest matched ratio; None where no estimator's is known."""
    frame = frame_of(comparison, None)
    values = frame[JUDGED.name].to_numpy(dtype=float) if JUDGED.name in frame else np.empty(0)
    if not np.isfinite(values).any():
        return None
    return str(frame["estimator"].iloc[int(np.nanargmin(values))])


def clear_winner(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> int | None:
    """Position of the row that is lowest beyond doubt, as far as frames show it.

    Args:
        frame: of a comparison.
        paired: of the same comparison with the lowest estimator as reference. Without it the question is settled only
            where the lowest estimator is the reference, or one of two rows of which the other is.

    Raises:
        ValueError: when ``paired`` has another reference, or other rows.
    """
    best = lowest(frame)
    if best is None or len(frame) < 2 or frame["estimator"].duplicated().any():
        return None
    at = [str(name) for name in frame["estimator"]].index(best)
    if paired is not None:
        if paired.attrs.get("reference") != best:
            raise ValueError(
                f"paired has the reference {paired.attrs.get('reference')!r}, and {best!r} is the lowest: compare "
                f"again with reference={best!r}"
            )
        if list(paired["estimator"]) != list(frame["estimator"]):
            raise ValueError("paired holds other estimators than the table: compare the same ones")
        others = paired[f"{JUDGED.name}_low"].drop(paired.index[at])
        return at if bool((others > 1.0).all()) else None
    if frame.attrs.get("reference") == best:
        return clear_winner(frame, frame)
    return at if len(frame) == 2 and _other_is_reference(frame, at) else None


def frame_of(comparison: Comparison | pd.DataFrame, confidence_level: float | None) -> pd.DataFrame:
    """The frame of a comparison, or the frame itself."""
    if isinstance(comparison, pd.DataFrame):
        return comparison
    return comparison.to_frame() if confidence_level is None else comparison.to_frame(confidence_level)


def _other_is_reference(frame: pd.DataFrame, at: int) -> bool:
    """Two rows, one of which is the reference: the interval of the other is the paired one."""
    other = frame["estimator"].iloc[1 - at]
    return other == frame.attrs.get("reference") and bool(frame[f"{JUDGED.name}_high"].iloc[at] < 1.0)
