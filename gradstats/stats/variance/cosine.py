"""The cosine between an estimator's expected gradient and the target's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimated, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics


@dataclass(frozen=True)
class Cosine:
    """The estimate as a quotient.

    Attributes:
        quotient: ⟨E g, G⟩ over ‖E g‖‖G‖.
    """

    quotient: FiellerRatio

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, the ends between −1 and 1; no value where a norm is not resolved."""
        if not self.quotient.is_known:
            return np.nan, -1.0, 1.0
        pieces = self.quotient.solution(confidence_level)
        if self.quotient.is_bounded(confidence_level):
            # What lies beyond ±1 by rounding, or by its error, is put at the end that it is nearest to.
            low, high = (float(np.clip(end, -1.0, 1.0)) for end in pieces[0])
            return self.quotient.value, low, high
        return np.nan, *self.quotient.within(confidence_level, -1.0, 1.0)


def cosine(gradient: GradientStatistics) -> Estimated:
    r""":math:`⟨E g, G⟩/(‖E g‖\,‖G‖)`, with G the expectation of the target: 1 for an estimator biased in scale alone.

    Cross-fitted: each prompt's gradient is multiplied by the target's of all *other* prompts, so that no completion is
    paired with itself. The product of the norms is less the jackknife's estimate of its bias: roots of unbiased squares
    are too small on average, and the cosine would be too large (of dealt batches the estimate is less the part that a
    finite number of deals adds to it). The estimate may exceed 1 by its error. The interval is
    the Fieller set of the quotient, cut to [−1, 1]; where the product of the norms is not resolved no value is given,
    and where one of them may be 0 the interval is all of [−1, 1].
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    own, target = gradient.signal, gradient.target.signal
    norms = own.root() * target.root()
    # √((1 + a)(1 + b)) = 1 + (a + b)/2 − (a − b)²/8 + …, a and b the relative errors of the two squares.
    relative = own.in_units_of_itself() - target.in_units_of_itself()
    norms = norms.without_bias(-norms.value * relative.surplus_over_deals / 8)
    return Cosine(fieller_ratio(gradient.target.cross, norms))
