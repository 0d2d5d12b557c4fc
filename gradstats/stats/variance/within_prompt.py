"""The component of the variance between groups of one prompt."""

from __future__ import annotations

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.skewed_mean import skewed_mean
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def within_prompt(gradient: GradientStatistics) -> Estimate:
    r"""Average :math:`\frac{1}{K-1}\sum_k‖g_{mk} - \bar g_m‖²`, over the K groups of a prompt, over prompts.

    It falls as groups grow. In the square of the gradient's unit. The interval is that of ``trace_cov``; NaN where
    every prompt has a single group.
    """
    return NOT_ESTIMATED if gradient.within is None else skewed_mean(gradient.within, gradient.within.pseudo_values)
