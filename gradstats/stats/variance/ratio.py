"""The variance relative to the reference's."""

from __future__ import annotations

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.studentised import studentised_ratio
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def ratio(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)`, with r the gradient of the reference.

    It falls with the scale of the estimator: one that shrinks its gradient by c has c² times the variance.

    Both variances come from the same prompts, so that the interval is paired: a studentised bootstrap over prompts on
    the log scale (:mod:`gradstats.stats.studentised`). NaN where the reference gives no completion any weight.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    return studentised_ratio(gradient.trace_cov, gradient.reference.trace_cov)
