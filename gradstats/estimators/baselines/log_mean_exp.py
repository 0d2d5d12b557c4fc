r"""Kimi's baseline, the soft maximum τ·log mean exp(R/τ) of the group's rewards."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.expectations import WEIGHTED_BIAS, unbiased_if_loo
from gradstats.estimators.baselines.grouping import first_of_group, reduce_by_group, reduce_others
from gradstats.estimators.baselines.weighted_mean import apply_singleton
from gradstats.estimators.batch import Batch
from gradstats.estimators.registry import estimator


@estimator(
    "kimi",
    display="Kimi baseline",
    baseline="τ·log mean exp(R/τ)",
    bias=WEIGHTED_BIAS,
    source="Kimi Team 2025, 2501.12599",
    expected_scale=unbiased_if_loo,
)
def kimi(batch: Batch, tau: float, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - τ\log\frac1N\sum_j e^{R_j/τ}`. Kimi k1.5, 2501.12599.

    τ → ∞ gives the group mean and τ → 0 the greatest reward. By default :math:`R_i` enters its own baseline and E[ĝ]
    is not a multiple of ∇J; ``loo=True`` averages over the others and is unbiased.

    Args:
        batch: the completions.
        tau: the temperature τ; there is no default because it has the unit of the rewards.
        loo: leave sample i out of its own baseline.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.kimi(tau=1.0).advantages(batch).round(2)
        array([ 0.38, -0.62, -0.62,  0.38])
    """
    index, n_groups = batch.group_index, batch.n_groups
    sizes = batch.group_sizes[index]
    centred = batch.rewards - first_of_group(batch.rewards, index, n_groups)
    greatest = reduce_by_group(centred, index, n_groups, np.maximum)[index]
    least = reduce_by_group(centred, index, n_groups, np.minimum)[index]
    if loo:
        log_sum = reduce_others(centred / tau, index, n_groups, np.logaddexp, -np.inf)
        baseline = tau * (log_sum - np.log(np.maximum(sizes - 1, 1)))
    else:
        shares = reduce_by_group(np.exp((centred - greatest) / tau), index, n_groups)[index] / sizes
        baseline = greatest + tau * np.log(shares)
    # without spread the baseline is the common reward, whatever the rounding of the logarithms
    advantages = np.where(greatest == least, 0.0, centred - baseline)
    return apply_singleton(advantages, sizes == 1, batch.rewards, singleton)
