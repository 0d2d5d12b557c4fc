"""The rank correlation of a proxy with token energies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from scipy import stats

from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic


def rank_correlation(
    energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]
) -> Estimate:
    r"""Estimate Spearman's correlation of proxy and energy within completions, averaged over prompts.

    :math:`\mathrm{Corr}(\mathrm{rank}\,e_t, \mathrm{rank}\,p_t)` over the tokens of a completion, then the mean over a
    prompt's completions and over prompts. Completions of fewer than 3 tokens, or in which one of the two is constant,
    have none; NaN where fewer than 3 prompts have one.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    correlations = np.full(len(energies), np.nan)
    for row, (energy, value) in enumerate(zip(energies, values, strict=True)):
        if len(energy) > 2 and np.ptp(value) > 0 and np.ptp(energy) > 0:
            correlations[row] = np.corrcoef(stats.rankdata(energy), stats.rankdata(value))[0, 1]
    known = np.isfinite(correlations)
    index = np.unique(prompts[known], return_inverse=True)[1]
    if index.size == 0 or index.max() < 2:
        return NOT_ESTIMATED
    return mean_statistic(np.bincount(index, correlations[known]) / np.bincount(index)).estimate()
