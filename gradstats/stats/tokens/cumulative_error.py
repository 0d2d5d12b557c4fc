"""The error of energies accumulated along completions, when a proxy takes their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.tokens.factor import common_scale

#: Of a completion's tokens: a quarter, half, three quarters and the end.
FRACTIONS = (0.25, 0.5, 0.75, 1.0)


def cumulative_errors(
    energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]
) -> list[Statistic]:
    r"""Estimate the mean of :math:`|c\sum_{u≤t}p_u - W_t|/W_t` over completions, at each of :data:`FRACTIONS`.

    :math:`W_t = \sum_{u≤t}e_u`, and c is the one scale at which the totals over all completions agree. The printed
    ``cumulative_error`` is the mean over the four places.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    scale = common_scale(energies, values)
    errors = np.zeros((len(FRACTIONS), len(energies)))
    for row, (energy, value) in enumerate(zip(energies, values, strict=True)):
        at = np.ceil(np.array(FRACTIONS) * len(energy)).astype(int) - 1
        truth, proxy = np.cumsum(energy)[at], np.cumsum(value)[at]
        errors[:, row] = np.abs(scale * proxy - truth) / truth
    sizes = np.bincount(prompts)
    return [mean_statistic(np.bincount(prompts, at_place) / sizes) for at_place in errors]
