"""The variance of a group's gradient, relative to the squared norm of its expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.jackknife import UNKNOWN, Estimate, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.signal_sq import is_resolved, signal_sq


@dataclass(frozen=True)
class NoiseToSignal:
    """The estimate, known by its inverse, which stays finite where the signal may be 0.

    Attributes:
        inverse: ‖E g‖² over tr Cov.
        signal: ‖E g‖².
    """

    inverse: Estimate
    signal: Estimate

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``: the lower end alone where the signal is not resolved."""
        low, high = self.inverse.confidence_interval(confidence_level)
        if not high > 0:
            return UNKNOWN
        if not is_resolved(self.signal, confidence_level):
            return np.nan, 1.0 / high, np.inf
        return 1.0 / self.inverse.value, 1.0 / high, 1.0 / low if low > 0 else np.inf


def noise_to_signal(gradient: GradientStatistics) -> NoiseToSignal:
    r""":math:`\mathrm{tr\,Cov}(g)/‖E g‖²`, in units of groups: the simple noise scale.

    So many groups have to be averaged until the noise of their mean is as large as the signal. It does not depend on
    the unit of the gradient. McCandlish et al., *An Empirical Model of Large-Batch Training*, 1812.06162.

    The interval is that of the inverse (a delete-one-prompt jackknife on the raw scale), inverted. Where ‖E g‖² is not
    resolved the value is NaN, its lower end given and its upper end infinite.
    """
    return NoiseToSignal((gradient.signal / gradient.trace_cov).estimate(), signal_sq(gradient))
