"""The share of the mean squared error that is bias, once the scale of the estimator is set aside."""

from __future__ import annotations

import numpy as np

from gradstats.stats.fieller import fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimated
from gradstats.stats.studentised import EXACT
from gradstats.stats.variance.bias_share import BiasShare
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def matched_bias_share(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{‖E g/c - G‖²}{‖E g/c - G‖² + \mathrm{tr\,Cov}(g)/(c²B)}` with :math:`c = ⟨E g, G⟩/‖G‖²`.

    The estimator g is scaled so that its expected gradient projects with coefficient 1 on G, that of the target: what
    is left of the bias is its direction, in a batch of B prompts. A scale alone, such as the 1/L of Dr. GRPO, has none.
    With U-statistics for the inner products it is

    .. math:: \frac{A}{A + \mathrm{tr\,Cov}(g)\,‖G‖²/B}, \qquad A = ‖E g‖²‖G‖² - ⟨E g, G⟩²,

    with A less the jackknife's estimate of its bias, since the square of an estimated product is too large by its
    variance; it may be negative, and the share with it. Where c is known exactly it is used:
    :math:`‖E g‖² - 2c⟨E g, G⟩ + c²‖G‖²` is then the squared bias beside tr Cov(g)/B. The interval is the Fieller set of
    the quotient, cut to [0, 1]; no value is given where the denominator is not resolved.
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    cross, target_signal = gradient.target.cross, gradient.target.signal
    known = gradient.known_scale
    if known is not None:
        turned = gradient.signal - cross.scaled(2.0 * known) + target_signal.scaled(known**2)
        noise = gradient.trace_cov
    else:
        # The error of ⟨E g, G⟩ enters A by minus its square; that of ‖G‖² has no deals.
        turned = (gradient.signal * target_signal - cross * cross).without_bias(-cross.surplus_over_deals)
        noise = gradient.trace_cov * target_signal
    unit = gradient.second_moment.value * (1.0 if known is not None else target_signal.value)
    if max(abs(turned.value), float(np.abs(turned.replicates).max())) <= EXACT * abs(unit):
        turned = turned.scaled(0.0)  # a multiple of the target: what is left is rounding
    return BiasShare(fieller_ratio(turned, turned + noise.scaled(1.0 / gradient.prompts_per_batch)))
