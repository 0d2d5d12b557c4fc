"""The squared norm of the expected gradient, and whether the data resolve it."""

from __future__ import annotations

from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def signal_sq(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`‖E g‖²` without bias: the mean of :math:`⟨g_m, g_{m'}⟩` over pairs of different prompts.

    May be negative and is never truncated. In the square of the gradient's unit. The interval is a delete-one-prompt
    jackknife on the raw scale (:mod:`gradstats.stats.variance.u_statistic`): a bootstrap over prompts would duplicate
    them and shift it by ``trace_cov``/M.
    """
    return gradient.signal.estimate()


def is_resolved(signal: Estimate, confidence_level: float) -> bool:
    """Return whether the interval of ‖E g‖² lies above 0."""
    return bool(signal.confidence_interval(confidence_level)[0] > 0)
