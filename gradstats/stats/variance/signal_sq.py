"""The squared norm of the expected gradient, and whether the data resolve it."""

from __future__ import annotations

import numpy as np
from scipy import stats

from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.gradient_statistics import GradientStatistics


def signal_sq(gradient: GradientStatistics) -> Estimate:
    r""":math:`‖E g‖²` without bias: the mean of :math:`⟨g_m, g_{m'}⟩` over pairs of different prompts.

    May be negative and is never truncated. In the square of the gradient's unit. The interval is a delete-one-prompt
    jackknife on the raw scale (:mod:`gradstats.stats.variance.u_statistic`): a bootstrap over prompts would duplicate
    them and shift it by ``trace_cov``/M.
    """
    return gradient.signal.estimate()


def is_resolved(signal: Estimate, confidence_level: float) -> bool:
    """Whether the interval of ‖E g‖² lies above 0."""
    return bool(signal.confidence_interval(confidence_level)[0] > 0)


def prompts_to_resolve(signal: Estimate, n_prompts: int, confidence_level: float) -> float:
    r"""Bound from below the number of prompts that resolves a signal.

    The standard error of ‖E g‖² falls at most like 1/M, and the signal is at most the upper end of its
    interval; with four chances in five, the lower end is then above 0 from M·(t + 0.84)·se/upper prompts on.
    """
    high = signal.confidence_interval(confidence_level)[1]
    if not high > 0:
        return np.nan
    quantile = stats.norm.ppf(0.5 + confidence_level / 2.0) + stats.norm.ppf(0.8)
    return float(max(n_prompts * quantile * signal.stderr / high, n_prompts + 1.0))
