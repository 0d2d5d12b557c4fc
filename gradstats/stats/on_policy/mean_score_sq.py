"""The squared norm of the mean score, which is 0 on-policy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.measured import MeasuredPolicy
from gradstats.stats.variance.group_moments import prompt_moments, shuffled_prompts, split_into_groups
from gradstats.stats.variance.sketch_error import SketchError


def mean_score_sq(measured: MeasuredPolicy, prompts: Int[np.ndarray, " n"], rng: np.random.Generator) -> Estimate:
    r"""Estimate :math:`‖E S‖²` by inner products of the mean scores of different prompts.

    .. math:: \frac{1}{M(M-1)}\sum_{m≠m'}⟨\bar S_m, \bar S_{m'}⟩

    is unbiased, and may be negative. NaN without sketches.

    Args:
        measured: a measurement.
        prompts: (n,) prompt of each completion, numbered from 0.
        rng: for estimating the sketch's error.
    """
    if measured.sketches is None:
        return NOT_ESTIMATED
    groups = split_into_groups(shuffled_prompts(prompts, rng), np.arange(len(prompts)), None)
    scores = np.asarray(measured.sketches, dtype=np.float64)[groups.rows]
    weights = 1.0 / groups.sizes[groups.group]
    sketch_error = SketchError(scores.shape[1], groups.n_prompts, rng)
    return prompt_moments(scores, weights, groups, None, sketch_error).signal.estimate()
