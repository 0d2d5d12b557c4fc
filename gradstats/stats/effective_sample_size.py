"""How many equally weighted items a weighted sum is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradstats.stats.jackknife import Statistic


def effective_sample_size(weights: ArrayLike) -> float:
    r"""Return :math:`(\sum_i w_i)²/\sum_i w_i²`: n of equal weights, 1 where one holds all; NaN where all are 0.

    Args:
        weights: (n,) w, such as importance ratios or squared norms; they may be in any unit.

    Example:
        >>> from gradstats.stats.effective_sample_size import effective_sample_size
        >>> effective_sample_size([1.0, 1.0, 1.0, 1.0]), effective_sample_size([3.0, 1.0])
        (4.0, 1.6)
    """
    values = np.asarray(weights, dtype=np.float64)
    squares = float(values @ values)
    return float(values.sum()) ** 2 / squares if squares > 0 else np.nan


def effective_sample_size_of_means(first: Statistic, second: Statistic, n: int) -> Statistic:
    r"""Return :math:`n\,\bar w²/\overline{w²}`, which is the same number, with its replicates.

    Args:
        first: the mean of w.
        second: the mean of w².
        n: how many there are.
    """
    return (first * first / second).scaled(float(n))
