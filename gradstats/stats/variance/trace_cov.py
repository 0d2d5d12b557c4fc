"""The variance of one group's gradient."""

from __future__ import annotations

from gradstats.stats.jackknife import Estimate
from gradstats.stats.skewed_mean import skewed_mean
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def trace_cov(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g) = E‖g‖² - ‖E g‖²` of one group's gradient, over prompts and completions.

    With one group a prompt it is :math:`(\sum_m‖g_m‖² - ‖\sum_m g_m‖²/M)/(M-1)`; with several, the sum of
    ``within_prompt`` and ``between_prompt`` (:class:`gradstats.stats.variance.group_moments.PromptMoments`). In the
    square of the gradient's unit. The mean over M prompts has the variance ``trace_cov``/M.

    The interval is a delete-one-prompt jackknife on the log scale, with quantiles for heavy tails of the squared
    gradients of prompts (:mod:`gradstats.stats.skewed_mean`).
    """
    return skewed_mean(gradient.trace_cov, gradient.second_moment.pseudo_values)
