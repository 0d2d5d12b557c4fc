"""The shares of an estimator's expected gradient and of its variance that some of the completions make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from gradstats.estimators.estimator import Weighting
from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval, Statistic
from gradstats.stats.studentised import studentised_ratio
from gradstats.stats.variance.group_moments import PromptMoments, cross_signal
from gradstats.stats.variance.pooled_completions import PooledCompletions, Weighted
from gradstats.stats.variance.sketch_error import SketchError

#: Name and heading of the columns that :meth:`GradientShares.columns` gives.
SHARES = {"share_of_gradient": "share of gradient", "share_of_variance": "share of variance"}


@dataclass(frozen=True)
class ShareOfSum:
    """A share x of a sum of two positive parts, with the interval of the odds x/(1 − x).

    Attributes:
        share: x.
        odds: their estimate, of the part over the rest.
    """

    share: float
    odds: Estimate

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, between 0 and 1."""
        low, high = (end / (1.0 + end) if np.isfinite(end) else end for end in self._ends(confidence_level))
        return self.share, low, 1.0 if high == np.inf else high

    def _ends(self, confidence_level: float) -> tuple[float, float]:
        return self.odds.confidence_interval(confidence_level)


@dataclass(frozen=True)
class GradientShares:
    r"""What the part :math:`g^b` of a gradient :math:`g = \sum_b g^b` makes up of it.

    Attributes:
        gradient: :math:`⟨E g^b, E g⟩/‖E g‖²`; None without a gradient.
        variance: :math:`(E⟨g^b, g⟩ - ⟨E g^b, E g⟩)/\mathrm{tr\,Cov}(g)`, the part's covariance with the whole.
        part: the moments of :math:`g^b`; None where none of its completions has any weight.
    """

    gradient: FiellerRatio | None
    variance: Estimated
    part: PromptMoments | None

    def columns(self, confidence_level: float) -> dict[str, float]:
        """Return both shares with their ``_low`` and ``_high``."""
        intervals = (resolved(self.gradient, confidence_level), self.variance.with_interval(confidence_level))
        return with_ends(dict(zip(SHARES, intervals, strict=True)))


def gradient_shares(
    pool: PooledCompletions, estimator: Weighting, masks: Sequence[Bool[np.ndarray, " n"]]
) -> tuple[Weighted, list[GradientShares]]:
    r"""Split an estimator's gradient into the contributions of sets of completions.

    Both shares sum to 1 over sets that make up the whole. The share of the expected gradient is its projection on the
    whole, a U-statistic over pairs of different prompts with its Fieller set. In that of the variance
    :math:`⟨g^b, g⟩ = \tfrac12(‖g^b‖² + ‖g‖² - ‖g - g^b‖²)`, with exact squares where they were measured; its interval
    is a studentised bootstrap over prompts of the odds, or a jackknife where these are not positive.

    Args:
        pool: the completions.
        estimator: a group-level one.
        masks: (n,) the completions of each set.

    Returns:
        The whole gradient, and the shares of each set.
    """
    whole, moments = pool.with_parts(estimator, [mask for one in masks for mask in (one, ~one)])
    if whole.moments is None:
        return whole, [GradientShares(None, NOT_ESTIMATED, None) for _ in masks]
    pairs = zip(moments[::2], moments[1::2], strict=True)
    return whole, [_shares(whole.moments, part, rest, pool.sketch_error) for part, rest in pairs]


def _shares(
    whole: PromptMoments, part: PromptMoments | None, rest: PromptMoments | None, sketch_error: SketchError | None
) -> GradientShares:
    if part is None or rest is None:
        share = 0.0 if part is None else 1.0
        return GradientShares(
            fieller_ratio(whole.signal.scaled(share), whole.signal),
            Estimate(share, 0.0, "raw", len(whole.means) - 1.0),
            part,
        )
    along = cross_signal(part, whole, sketch_error)
    together = (part.second_moment + whole.second_moment - rest.second_moment).scaled(0.5)
    return GradientShares(fieller_ratio(along, whole.signal), _share_of_sum(together - along, whole.trace_cov), part)


def _share_of_sum(part: Statistic, whole: Statistic) -> Estimated:
    odds = studentised_ratio(part, whole - part)
    if not np.isfinite(odds.stderr):
        return (part / whole).estimate()
    return ShareOfSum(part.value / whole.value, odds)


def resolved(ratio: FiellerRatio | None, confidence_level: float) -> Interval:
    """Return ``(value, low, high)`` of a ratio; no value where its denominator is not resolved."""
    if ratio is None:
        return UNKNOWN
    if ratio.is_known and ratio.is_exact:
        return ratio.value, ratio.value, ratio.value
    value = ratio.value if ratio.is_bounded(confidence_level) else np.nan
    return value, *ratio.within(confidence_level, -np.inf, np.inf)


def with_ends(intervals: dict[str, Interval]) -> dict[str, float]:
    """Return columns of a frame: each name, and with ``_low`` and ``_high``."""
    return {
        f"{name}{end}": number
        for name, interval in intervals.items()
        for end, number in zip(("", "_low", "_high"), interval, strict=True)
    }
