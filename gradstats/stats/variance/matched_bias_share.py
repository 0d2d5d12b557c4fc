"""The share of the mean squared error that is bias, once the scale of the estimator is set aside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval, Statistic
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.signal_sq import is_resolved


@dataclass(frozen=True)
class MatchedBiasShare:
    """The estimate, as a function of bias over noise.

    Attributes:
        bias_to_noise: ‖E g/c − G‖² over tr Cov(g)/c².
        prompts_per_batch: B.
        target_signal: ‖G‖², which the coefficient c divides by; None where c is known exactly.
    """

    bias_to_noise: Estimate
    prompts_per_batch: int
    target_signal: Estimate | None

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``, ends between 0 and 1; NaN where the target's gradient is not resolved."""
        if self.target_signal is not None and not is_resolved(self.target_signal, confidence_level):
            return UNKNOWN
        value, low, high = self.bias_to_noise.with_interval(confidence_level)
        return self._share(value), self._share(max(low, 0.0)), self._share(max(high, 0.0))

    def _share(self, bias_to_noise: float) -> float:
        """Return the share, which grows with its argument down to the pole at −1/B."""
        scaled = bias_to_noise * self.prompts_per_batch
        return float(scaled / (scaled + 1.0)) if scaled > -1.0 else np.nan


def matched_bias_share(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{‖E g/c - G‖²}{‖E g/c - G‖² + \mathrm{tr\,Cov}(g)/(c²B)}` with :math:`c = ⟨E g, G⟩/‖G‖²`.

    The estimator g is scaled so that its expected gradient projects with coefficient 1 on G, that of the target: what
    is left of the bias is its direction, in a batch of B prompts. A scale alone, such as the 1/L of Dr. GRPO, has none.
    With U-statistics for the inner products the bias over the noise is

    .. math:: \frac{‖E g‖² - ⟨E g, G⟩²/‖G‖²}{\mathrm{tr\,Cov}(g)},

    less the jackknife's estimate of its bias, which an estimated c brings; it may be negative, and the share with it.
    Where c is known exactly it is used:
    :math:`‖E g‖² - 2c⟨E g, G⟩ + c²‖G‖²` in the numerator. The interval is a delete-one-prompt jackknife of this
    quotient, carried through the share and cut to [0, 1]; everything is NaN where ‖G‖² is needed and not resolved.
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    cross, target_signal = gradient.target.cross, gradient.target.signal
    known = gradient.known_scale
    if known is not None:
        turned = gradient.signal - cross.scaled(2.0 * known) + target_signal.scaled(known**2)
        return MatchedBiasShare((turned / gradient.trace_cov).estimate(), gradient.prompts_per_batch, None)
    turned = _unbiased((gradient.signal - cross * cross / target_signal) / gradient.trace_cov)
    return MatchedBiasShare(turned.estimate(), gradient.prompts_per_batch, target_signal.estimate())


def _unbiased(statistic: Statistic) -> Statistic:
    """Without the jackknife's estimate of its bias: the square of an estimated product is too large by its variance."""
    m = len(statistic.replicates)
    return replace(statistic, value=m * statistic.value - (m - 1.0) * float(statistic.replicates.mean()))
