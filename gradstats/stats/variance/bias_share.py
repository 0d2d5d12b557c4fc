"""The share of the mean squared error that is bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimated, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics


@dataclass(frozen=True)
class BiasShare:
    """The estimate as a quotient.

    Attributes:
        quotient: squared bias over the mean squared error of a batch.
    """

    quotient: FiellerRatio

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, the ends between 0 and 1; no value where the error is not resolved."""
        if not self.quotient.is_bounded(confidence_level):
            return np.nan, *self.quotient.within(confidence_level, 0.0, 1.0)
        # What lies below 0 by its error is put at 0.
        low, high = (float(np.clip(end, 0.0, 1.0)) for end in self.quotient.solution(confidence_level)[0])
        return self.quotient.value, low, high


def bias_share(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{‖E d‖²}{‖E d‖² + \mathrm{tr\,Cov}(g)/B}`, d = g − h with h the target's gradient, in a batch of B.

    :math:`‖E d‖²` is estimated without bias from pairs of different prompts, so that it may be negative, and the share
    with it. The interval is the Fieller set of the quotient, cut to [0, 1].
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    bias_sq = gradient.signal - gradient.target.cross.scaled(2.0) + gradient.target.signal
    error = bias_sq + gradient.trace_cov.scaled(1.0 / gradient.prompts_per_batch)
    return BiasShare(fieller_ratio(bias_sq, error))
