"""The typical factor by which a proxy is off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from gradstats.stats.jackknife import Estimate, mean_statistic


def factor(energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate by what factor the proxy of a token is typically off.

    :math:`\exp(\sum_t e_t|\log(e_t/(c p_t))|/\sum_t e_t)`, where tokens count by their energy e, and c is
    the one scale at which the totals of e and c p agree. 1 for a perfect proxy.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    scale = common_scale(energies, values)
    sums = np.zeros((2, int(prompts.max()) + 1))
    for prompt, energy, value in zip(prompts, energies, values, strict=True):
        kept = (energy > 0) & (value > 0)
        log_error = np.abs(np.log(energy[kept] / (scale * value[kept])))
        sums[:, prompt] += [energy[kept] @ log_error, energy[kept].sum()]
    log_factor = (mean_statistic(sums[0]) / mean_statistic(sums[1])).estimate()
    return Estimate(float(np.exp(log_factor.value)), log_factor.stderr, "log", log_factor.degrees)


def common_scale(energies: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> float:
    r"""Return :math:`\sum e/\sum p` over all tokens, the scale at which both totals agree; NaN if all p are 0."""
    total = sum(float(value.sum()) for value in values)
    return sum(float(energy.sum()) for energy in energies) / total if total > 0 else np.nan
