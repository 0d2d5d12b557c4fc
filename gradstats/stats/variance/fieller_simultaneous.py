"""Intervals of the quotients of a table, such as its cosines, that hold together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradstats.stats.jackknife import Estimated
from gradstats.stats.studentised import largest_deviation
from gradstats.stats.variance.bias_share import BiasShare
from gradstats.stats.variance.cosine import Cosine


def fieller_simultaneous(estimates: Sequence[Estimated], confidence_level: float) -> list[tuple[float, float]]:
    """Return an interval for each cosine or share of bias, such that all hold together at the stated level.

    These are ``cosine_simultaneous`` and ``matched_bias_share_simultaneous`` of a curve.
    Each is the Fieller set of the quotient with the quantile of the largest studentised deviation over all rows in
    place of Student's (max-t, as for ``ratio_simultaneous``), cut to what is possible. Rows that are known exactly take
    no part; the interval of one that is not estimated is NaN.

    Args:
        estimates: of the estimators of one table, on the same prompts.
        confidence_level: of all intervals together.
    """
    quotients = [one.quotient if isinstance(one, Cosine | BiasShare) else None for one in estimates]
    draws = [one.draws for one in quotients if one is not None and one.is_known and not one.is_exact]
    quantile = largest_deviation(draws, confidence_level)
    ends: list[tuple[float, float]] = []
    for one, quotient in zip(estimates, quotients, strict=True):
        if quotient is None:
            ends.append((np.nan, np.nan))
            continue
        lowest = -1.0 if isinstance(one, Cosine) else 0.0
        low, high = (-np.inf, np.inf) if not quotient.is_known else _hull(quotient.solution(confidence_level, quantile))
        # What lies beyond the possible values by its error is put at the end that it is nearest to.
        ends.append((float(np.clip(low, lowest, 1.0)), float(np.clip(high, lowest, 1.0))))
    return ends


def _hull(pieces: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return pieces[0][0], pieces[-1][1]
