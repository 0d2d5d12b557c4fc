"""Intervals of the ratios of a table that hold together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradstats.stats.jackknife import Estimate
from gradstats.stats.studentised import EXACT, StudentisedEstimate, largest_deviation


def ratio_simultaneous(ratios: Sequence[Estimate], confidence_level: float) -> list[tuple[float, float]]:
    r"""Give each ``ratio`` an interval such that all of them hold together at the stated level.

    With :math:`t_e` the studentised deviation of the logarithm of ratio e, the interval of every ratio uses the upper
    quantile of :math:`\max_e t_e` and the lower one of :math:`\min_e t_e`, from the same resamples of the prompts
    (max-t; Romano and Wolf 2005). It contains the interval of the ratio alone. Ratios that are known exactly take no
    part; the interval of one that is not estimated is NaN.

    Args:
        ratios: of the estimators of one table, on the same prompts.
        confidence_level: of all intervals together.
    """
    draws = [one.draws for one in ratios if isinstance(one, StudentisedEstimate) and one.stderr > EXACT]
    quantile = largest_deviation(draws, confidence_level)
    return [
        one.within(quantile, confidence_level) if isinstance(one, StudentisedEstimate) else (np.nan, np.nan)
        for one in ratios
    ]
