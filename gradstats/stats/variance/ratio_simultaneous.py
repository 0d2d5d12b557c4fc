"""Intervals of the ratios of a table that hold together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from gradstats.stats.jackknife import Estimate, require_level
from gradstats.stats.studentised import EXACT, StudentisedEstimate


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
    lower, upper = largest_deviations(draws, confidence_level)
    return [
        one.within(lower, upper, confidence_level) if isinstance(one, StudentisedEstimate) else (np.nan, np.nan)
        for one in ratios
    ]


def largest_deviations(
    draws: Sequence[Float[np.ndarray, " resamples"]], confidence_level: float
) -> tuple[float, float]:
    """Return the lower quantile of the smallest and the upper one of the largest of several studentised deviations.

    Args:
        draws: of each, from the same resamples; without any, both quantiles are 0.
        confidence_level: of all intervals together.
    """
    half = (1.0 - require_level(confidence_level)) / 2.0
    if not draws:
        return 0.0, 0.0
    stacked = np.stack(draws)
    stacked = stacked[:, np.isfinite(stacked).any(axis=0)]
    lowest, highest = np.nanmin(stacked, axis=0), np.nanmax(stacked, axis=0)
    return float(np.quantile(lowest, half)), float(np.quantile(highest, 1.0 - half))
