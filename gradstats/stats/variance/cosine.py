"""The cosine between an estimator's expected gradient and the target's."""

from __future__ import annotations

from dataclasses import dataclass

from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval
from gradstats.stats.variance.gradient_statistics import GradientStatistics
from gradstats.stats.variance.signal_sq import is_resolved, signal_sq


@dataclass(frozen=True)
class Cosine:
    """The estimate, and the two squared norms that it divides by.

    Attributes:
        cosine: ⟨E g, G⟩/(‖E g‖‖G‖).
        signal: ‖E g‖².
        target_signal: ‖G‖².
    """

    cosine: Estimate
    signal: Estimate
    target_signal: Estimate

    def with_interval(self, confidence_level: float) -> Interval:
        """``(value, low, high)``; NaN where one of the norms is not resolved."""
        if not (is_resolved(self.signal, confidence_level) and is_resolved(self.target_signal, confidence_level)):
            return UNKNOWN
        return self.cosine.with_interval(confidence_level)


def cosine(gradient: GradientStatistics) -> Estimated:
    r""":math:`⟨E g, G⟩/(‖E g‖\,‖G‖)`, with G the expectation of the target: 1 for an estimator biased in scale alone.

    Cross-fitted: each prompt's gradient is multiplied by the target's of all *other* prompts, so that no completion is
    paired with itself. The interval is a delete-one-prompt jackknife on the raw scale; NaN where one of the two norms
    is not resolved.
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    product = gradient.signal.root() * gradient.target.signal.root()
    return Cosine((gradient.target.cross / product).estimate(), signal_sq(gradient), gradient.target.signal.estimate())
