"""The variance relative to the reference's, at the same expected step along it."""

from __future__ import annotations

from dataclasses import dataclass

from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.ratio import ratio
from gradstats.stats.variance.signal_sq import is_resolved, signal_sq


@dataclass(frozen=True)
class OfKnownScale:
    """Where the coefficient is known exactly.

    Attributes:
        ratio: tr Cov over the reference's.
        coefficient: what E g is of E r.
    """

    ratio: Estimate
    coefficient: float

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``; NaN for an expected gradient of 0."""
        if self.coefficient == 0.0:
            return UNKNOWN
        value, low, high = self.ratio.with_interval(confidence_level)
        factor = self.coefficient**-2
        return value * factor, low * factor, high * factor


@dataclass(frozen=True)
class OfEstimatedScale:
    """Where the coefficient is estimated from the same prompts.

    Attributes:
        ratio: tr Cov over the reference's, over the square of the coefficient.
        coefficient: ⟨E g, E r⟩/‖E r‖².
        signal: ‖E g‖².
        reference_signal: ‖E r‖².
    """

    ratio: Estimate
    coefficient: Estimate
    signal: Estimate
    reference_signal: Estimate

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``; NaN where a signal, or the sign of the coefficient, is not resolved."""
        low, high = self.coefficient.confidence_interval(confidence_level)
        resolved = is_resolved(self.signal, confidence_level) and is_resolved(self.reference_signal, confidence_level)
        if not (resolved and (low > 0 or high < 0)):
            return UNKNOWN
        return self.ratio.with_interval(confidence_level)


def matched_ratio(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{\mathrm{tr\,Cov}(g)/c²}{\mathrm{tr\,Cov}(r)}` with :math:`c = ⟨E g, E r⟩/‖E r‖²`, r the reference.

    The estimator is scaled so that its expected gradient projects with coefficient 1 on the reference's: neither its
    scale nor its unit enters. Where both expectations are exact multiples of the true gradient (an own-sample mean
    keeps (N−1)/N of it) that number is c and the interval is that of ``ratio``; otherwise c is estimated, the interval
    is a delete-one-prompt jackknife on the log scale, and everything is NaN where c is not resolved.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    if gradient.known_coefficient is not None:
        return OfKnownScale(ratio(gradient), gradient.known_coefficient)
    coefficient = gradient.reference.cross / gradient.reference.signal
    matched = gradient.trace_cov / gradient.reference.trace_cov / (coefficient * coefficient)
    return OfEstimatedScale(
        matched.estimate("log"), coefficient.estimate(), signal_sq(gradient), gradient.reference.signal.estimate()
    )
