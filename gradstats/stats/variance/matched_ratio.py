"""The variance relative to the reference's, at the same expected step along the target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval, Statistic
from gradstats.stats.studentised import StudentisedEstimate
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.ratio import ratio


@dataclass(frozen=True)
class OfKnownScale:
    """Where the coefficient is known exactly.

    Attributes:
        ratio: tr Cov over the reference's.
        coefficient: the factor of E g relative to E r.
    """

    ratio: Estimate
    coefficient: float

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; NaN for an expected gradient of 0."""
        return self._scaled(*self.ratio.with_interval(confidence_level))

    def within(self, quantile: float, confidence_level: float) -> Interval:
        """Return the same for a quantile of the studentised deviation, or for Student's where that is larger."""
        if not isinstance(self.ratio, StudentisedEstimate):
            return UNKNOWN
        return self._scaled(self.ratio.value, *self.ratio.within(quantile, confidence_level))

    def _scaled(self, value: float, low: float, high: float) -> Interval:
        if self.coefficient == 0.0:
            return UNKNOWN
        factor = self.coefficient**-2
        return value * factor, low * factor, high * factor


@dataclass(frozen=True)
class OfEstimatedScale:
    """Where the coefficient is estimated from the same prompts.

    Attributes:
        root: its square root, √(tr Cov(g)/tr Cov(r)) over the coefficient, of either sign.
    """

    root: FiellerRatio

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``: a ray without a value where the coefficient is not resolved."""
        return self.within(0.0, confidence_level)

    def within(self, quantile: float, confidence_level: float) -> Interval:
        """Return the same for a quantile of the studentised deviation, or for Student's where that is larger."""
        pieces = self.root.solution(confidence_level, quantile)
        if not pieces:
            return UNKNOWN
        low = min(0.0 if first <= 0.0 <= last else min(first**2, last**2) for first, last in pieces)
        high = max(max(first**2, last**2) for first, last in pieces)
        return self.root.value**2 if np.isfinite(high) else np.nan, low, high


def matched_ratio(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{\mathrm{tr\,Cov}(g)/c²}{\mathrm{tr\,Cov}(r)/c_r²}` with :math:`c = ⟨E g, G⟩/‖G‖²` and
    :math:`c_r = ⟨E r, G⟩/‖G‖²`, r the reference and G the expectation of the target.

    Estimator and reference are scaled so that their expected gradients project with coefficient 1 on the target's:
    neither scale nor unit enters. Where both expectations are exact multiples of the true gradient (an own-sample mean
    keeps (N−1)/N of it, for completions drawn from the scored policy) these numbers are used, and the interval is that
    of ``ratio``. Otherwise :math:`c_r/c = ⟨E r, G⟩/⟨E g, G⟩` is estimated, and the interval is the Fieller set of
    :math:`\sqrt{\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)}\;⟨E r, G⟩ / ⟨E g, G⟩`, squared: a ray with an infinite upper
    end, without a value, where the projection of E g on G is not resolved.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    if gradient.known_coefficient is not None:
        return OfKnownScale(ratio(gradient), gradient.known_coefficient)
    if gradient.target is None or gradient.reference_on_target is None:
        return NOT_ESTIMATED
    root = (gradient.trace_cov / gradient.reference.trace_cov).root()
    return OfEstimatedScale(fieller_ratio(root * gradient.reference_on_target, gradient.target.cross))


def matched_trace_cov(gradient: GradientStatistics) -> Statistic | None:
    """Return tr Cov at matched signal, up to a factor that all estimators share; None where the signal is not known.

    It ranks estimators, of which ``matched_ratio`` gives each beside the reference alone.
    """
    if gradient.known_coefficient is not None:
        known = gradient.known_coefficient
        return None if known == 0.0 else gradient.trace_cov.scaled(known**-2)
    if gradient.target is None or gradient.reference_on_target is None:
        return None
    coefficient = gradient.target.cross / gradient.reference_on_target
    return gradient.trace_cov / (coefficient * coefficient)
