"""The variance of a group's gradient, relative to the squared norm of its expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics


@dataclass(frozen=True)
class NoiseToSignal:
    """The estimate as a quotient of variance and signal.

    Attributes:
        quotient: tr Cov over ‖E g‖².
    """

    quotient: FiellerRatio

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``: a ray without a value where the signal is not resolved."""
        low, high = self.quotient.within(confidence_level, 0.0, np.inf)
        return self.quotient.value if np.isfinite(high) else np.nan, low, high


def noise_to_signal(gradient: GradientStatistics) -> NoiseToSignal:
    r"""Return :math:`\mathrm{tr\,Cov}(g)/‖E g‖²`, in units of groups: the simple noise scale.

    It is the number of groups that must be averaged for the noise of their mean to equal the signal. It does not depend
    on the unit of the gradient. McCandlish et al., *An Empirical Model of Large-Batch Training*, 1812.06162.

    The interval is the Fieller set of the quotient where the signal is at least 0
    (:class:`gradstats.stats.fieller.FiellerRatio`, variances from a delete-one-prompt jackknife). Where the signal is
    not resolved it is a ray with an infinite upper end, and no value is given. Where the estimated signal is negative
    beyond its error no noise to signal is compatible with the data, and everything is NaN.
    """
    return NoiseToSignal(fieller_ratio(gradient.trace_cov, gradient.signal))
