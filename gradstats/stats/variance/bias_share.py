"""The share of the mean squared error that is bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Estimated, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics


@dataclass(frozen=True)
class BiasShare:
    """The estimate, as a function of bias over noise.

    Attributes:
        bias_to_noise: ‖E g − G‖² over tr Cov(g), unbiased numerator.
        prompts_per_batch: B.
    """

    bias_to_noise: Estimate
    prompts_per_batch: int

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``."""
        value, low, high = self.bias_to_noise.with_interval(confidence_level)
        return self._share(value, np.nan), self._share(low, -np.inf), self._share(high, np.nan)

    def _share(self, bias_to_noise: float, below_pole: float) -> float:
        """The share, which grows with its argument down to the pole at −1/B."""
        scaled = bias_to_noise * self.prompts_per_batch
        if np.isnan(scaled):
            return np.nan
        return float(scaled / (scaled + 1.0)) if scaled > -1.0 else below_pole


def bias_share(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{‖E d‖²}{‖E d‖² + \mathrm{tr\,Cov}(g)/B}`, d = g − h with h the target's gradient, in a batch of B.

    :math:`‖E d‖²` is estimated without bias from pairs of different prompts, so that it may be negative, and the share
    with it. The interval is that of :math:`‖E d‖²/\mathrm{tr\,Cov}(g)`, a delete-one-prompt jackknife on the raw scale,
    carried through the share.
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    bias_sq = gradient.signal - gradient.target.cross.scaled(2.0) + gradient.target.signal
    return BiasShare((bias_sq / gradient.trace_cov).estimate(), gradient.prompts_per_batch)
