"""Intervals of the matched ratios of a table that hold together."""

from __future__ import annotations

from collections.abc import Sequence

from gradstats.stats.jackknife import UNKNOWN, Estimated
from gradstats.stats.studentised import EXACT, StudentisedEstimate, largest_deviation
from gradstats.stats.variance.matched_ratio import OfEstimatedScale, OfKnownScale


def matched_ratio_simultaneous(matched: Sequence[Estimated], confidence_level: float) -> list[tuple[float, float]]:
    r"""Return an interval for each ``matched_ratio``, such that all of them hold together at the stated level.

    As for ``ratio_simultaneous``: where the scale is known it is that of ``ratio``, times the
    scale. Where it is estimated, the Fieller set with the quantile of the largest deviation in place of Student's,
    where the deviation of that row is the one of :math:`N - \hat ψD`, studentised. Rows that are known exactly take no
    part; what is not estimated is NaN.

    Args:
        matched: of the estimators of one table, on the same prompts.
        confidence_level: of all intervals together.
    """
    draws = []
    for one in matched:
        if isinstance(one, OfKnownScale):
            ratio = one.ratio
            if isinstance(ratio, StudentisedEstimate) and ratio.stderr > EXACT and one.coefficient != 0.0:
                draws.append(ratio.draws)
        elif isinstance(one, OfEstimatedScale) and one.root.is_known and not one.root.is_exact:
            draws.append(one.root.draws)
    quantile = largest_deviation(draws, confidence_level)
    ends = []
    for one in matched:
        interval = UNKNOWN
        if isinstance(one, OfKnownScale | OfEstimatedScale):
            interval = one.within(quantile, confidence_level)
        ends.append(interval[1:])
    return ends
