"""The component of the variance between prompts."""

from __future__ import annotations

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def between_prompt(gradient: GradientStatistics) -> Estimate:
    """Return ``trace_cov`` less ``within_prompt``: the variance of the prompts' own expected gradients.

    Without bias, so that it may be negative. It does not shrink with the group size. In the square of the gradient's
    unit. The interval is a delete-one-prompt jackknife on the raw scale; NaN where every prompt has a single group.
    """
    return NOT_ESTIMATED if gradient.within is None else (gradient.trace_cov - gradient.within).estimate()
