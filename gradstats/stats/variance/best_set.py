"""The column ``in_best_set``: which estimators may have the lowest variance at matched signal, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gradstats.stats.jackknife import Statistic, require_level
from gradstats.stats.studentised import N_RESAMPLES, studentised_means

# Logarithms of variances that differ by less are the same: what is left is rounding, or a constant such as the ε of a
# division, which no one would choose an estimator by.
TIE = 1e-5


@dataclass(frozen=True)
class PairwiseDifferences:
    r"""Studentised differences of all pairs of estimators, and the distribution of the largest deviation.

    Attributes:
        studentised: (E, E) (log V_e − log V_f)/se, with V the variance at matched signal; 0 for a tie, NaN where one of
            them is not known.
        largest: (resamples,) the largest studentised deviation over all pairs, in each resample of the prompts.
    """

    studentised: Float[np.ndarray, "e e"]
    largest: Float[np.ndarray, " resamples"]

    def known(self, judged: Bool[np.ndarray, " e"]) -> Bool[np.ndarray, " e"]:
        """Return which of the judged estimators have a variance at matched signal to compare."""
        return judged & np.isfinite(np.diag(self.studentised))

    def best_set(self, judged: Bool[np.ndarray, " e"], confidence_level: float) -> Bool[np.ndarray, " e"]:
        """Return whether each estimator belongs to the set that holds the truly lowest one, at this level.

        An estimator is left out where another one is lower by more than the quantile of the largest difference: the
        truly lowest is left out only if that difference is exceeded by chance (Hsu 1984, with the quantile from a
        studentised bootstrap over prompts).

        Args:
            judged: which estimators take part; the others are not in the set.
            confidence_level: of the set.
        """
        level = require_level(confidence_level)
        known = self.known(judged)
        above = self.studentised[:, known] > (np.nanquantile(self.largest, level) if known.sum() > 1 else np.inf)
        return known & ~above.any(axis=1)

    def placed(self, places: Sequence[int], n: int) -> PairwiseDifferences:
        """Return the same among n rows, of which those at other places are not known."""
        studentised = np.full((n, n), np.nan)
        studentised[np.ix_(places, places)] = self.studentised
        return PairwiseDifferences(studentised, self.largest)


def pairwise_differences(matched: Sequence[Statistic | None]) -> PairwiseDifferences:
    """Compare the variances at matched signal of E estimators on the same prompts.

    Args:
        matched: one statistic an estimator, None where it is not known.
    """
    n = len(matched)
    studentised = np.full((n, n), np.nan)
    usable = [at for at, one in enumerate(matched) if one is not None and _is_positive(one)]
    studentised[usable, usable] = 0.0
    relative = {at: one.in_units_of_itself() for at, one in enumerate(matched) if one is not None and at in usable}
    pairs, influences = [], []
    for place, first in enumerate(usable):
        for second in usable[place + 1 :]:
            one, other = matched[first], matched[second]
            assert one is not None
            assert other is not None
            difference = float(np.log(one.value / other.value))
            contrast = relative[first] - relative[second]
            stderr = float(np.sqrt((one / other).logarithm().variance()))
            score = 0.0
            if abs(difference) >= TIE:
                score = difference / stderr if stderr > 0 else float(np.copysign(np.inf, difference))
            studentised[first, second], studentised[second, first] = score, -score
            if score and stderr > 0:
                pairs.append((first, second))
                influences.append(contrast.pseudo_values)
    return PairwiseDifferences(studentised, _largest(influences))


def _is_positive(matched: Statistic) -> bool:
    return bool(matched.value > 0 and np.isfinite(matched.replicates).all())


def _largest(influences: list[Float[np.ndarray, " m"]]) -> Float[np.ndarray, " resamples"]:
    """Return the largest |t*| of the means of influence values, resample by resample."""
    if not influences:
        return np.zeros(N_RESAMPLES)
    draws = np.abs(studentised_means(np.stack(influences, axis=1)))
    return np.nan_to_num(draws, nan=0.0).max(axis=1)
