"""Which estimators may have the lowest relative noise, from their differences in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float

from gradstats.stats.intervals import N_RESAMPLES, studentised_means
from gradstats.stats.jackknife import Statistic, require_level

# Logarithms of variances that differ by less are the same: what is left is rounding, or a constant such as the ε of a
# division, which no one would choose an estimator by.
_TIE = 1e-5
#: Relative difference below which the numbers of two estimators are those of the same one at another scale.
EQUAL = 1e-6


def equal_by_construction(triples: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return the places of rows of numbers, those of equal ones together, in order of appearance.

    >>> equal_by_construction([(1, 1, 1), (2, 1, 3), (1, 1, 1)])
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for at, triple in enumerate(triples):
        for group in groups:
            if np.allclose(triples[group[0]], triple, rtol=EQUAL, atol=0.0, equal_nan=True):
                group.append(at)
                break
        else:
            groups.append([at])
    return groups


@dataclass(frozen=True)
class PairwiseDifferences:
    """Studentised differences of all pairs of estimators, and the distribution of the largest deviation."""

    # (log V_e − log V_f)/se, with V the variance at matched signal; 0 for a tie, NaN where one of them is not known.
    studentised: Float[np.ndarray, "e e"]
    largest: Float[np.ndarray, " resamples"]  # studentised deviation over all pairs, in each resample of the prompts

    def known(self, judged: Bool[np.ndarray, " e"]) -> Bool[np.ndarray, " e"]:
        """Return which of the judged estimators have a variance at matched signal to compare."""
        return judged & np.isfinite(np.diag(self.studentised))

    def best_set(self, judged: Bool[np.ndarray, " e"], confidence_level: float) -> Bool[np.ndarray, " e"]:
        """Return whether each estimator belongs to the set that holds the truly lowest one, at this level.

        An estimator is left out where another one is lower by more than the quantile of the largest difference: the
        truly lowest is left out only if that difference is exceeded by chance (Hsu 1984, with the quantile from a
        studentised bootstrap over prompts).
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
    """Compare the variances at matched signal of E estimators on the same prompts."""
    n = len(matched)
    studentised = np.full((n, n), np.nan)
    usable = {
        at: one
        for at, one in enumerate(matched)
        if one is not None and one.value > 0 and np.isfinite(one.replicates).all()
    }
    studentised[[*usable], [*usable]] = 0.0
    relative = {at: one.in_units_of_itself() for at, one in usable.items()}
    influences = []
    for first, second in combinations(usable, 2):
        one, other = usable[first], usable[second]
        difference = float(np.log(one.value / other.value))
        stderr = float(np.sqrt((one / other).logarithm().variance()))
        score = 0.0
        if abs(difference) >= _TIE:
            score = difference / stderr if stderr > 0 else float(np.copysign(np.inf, difference))
        studentised[first, second], studentised[second, first] = score, -score
        if score and stderr > 0:
            influences.append((relative[first] - relative[second]).pseudo_values)
    largest = np.zeros(N_RESAMPLES)
    if influences:
        draws = np.abs(studentised_means(np.stack(influences, axis=1)))
        largest = np.nan_to_num(draws, nan=0.0).max(axis=1)
    return PairwiseDifferences(studentised, largest)
