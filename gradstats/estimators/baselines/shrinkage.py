r"""The James–Stein baseline: each prompt's mean, shrunk towards the mean of the other prompts."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.expectations import unbiased
from gradstats.estimators.baselines.grouping import reduce_by_group, reduce_others
from gradstats.estimators.baselines.weighted_mean import apply_singleton, weighted_mean_advantages
from gradstats.estimators.batch import Batch
from gradstats.estimators.registry import estimator


@estimator(
    "james_stein",
    display="James–Stein",
    baseline="leave-one-out mean shrunk to the other prompts' mean",
    bias="LOO: E[ĝ] = ∇J; own sample: biased",
    source="2511.03710",
    across_groups=True,
    expected_scale=lambda group_size, parameters: unbiased(group_size, parameters) if parameters["loo"] else None,
)
def james_stein(
    batch: Batch, loo: bool = True, shrink_factor: bool = True, eps: float = 0.0, singleton: str = "zero"
) -> Float[np.ndarray, "n"]:
    r""":math:`A_i = R_i - (1-λ)\bar R_{-i} - λ\bar μ`, shrunk to the mean of the other groups' means. 2511.03710.

    :math:`\bar R_{-i}` is the mean of the others of the group, :math:`\bar μ` that of the other groups' means. With n
    groups, λ = ((n−1)/n)·v/(v+s), where, over the *other* groups k of :math:`m_k` completions, v is the mean of
    :math:`\sum_j (r_{kj} - μ_k)²/(m_k(m_k-1))` and s that of :math:`(μ_k - \bar μ)²`.
    λ = 0 when v + s = 0 or n = 1.
    Groups of one carry no information about v and are left out of its mean; v = 0 where no other group has two.
    λ depends on other groups only, so the estimator is unbiased, E[ĝ] = ∇J. It is batch-level.

    Args:
        batch: the completions.
        loo: ``False`` takes the mean of the whole group, sample i included, which is biased.
        shrink_factor: ``False`` omits (n−1)/n, as the authors' code does.
        eps: added to v + s; the authors' code has 1e-6.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.james_stein().advantages(batch)
        array([ 1.  , -1.  ,  0.25,  0.25])
    """
    index = batch.group_index
    advantages = weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", "zero")
    if batch.n_groups > 1:
        shrinkage, others_mean = _shrinkage(batch, shrink_factor, eps)
        # R − [(1−λ)(R − A) + λμ̄] = (1−λ)A + λ(R − μ̄)
        weight = shrinkage[index]
        advantages = (1 - weight) * advantages + weight * (batch.rewards - others_mean[index])
    return apply_singleton(advantages, batch.group_sizes[index] == 1, batch.rewards, singleton)


def _shrinkage(
    batch: Batch, shrink_factor: bool, eps: float
) -> tuple[Float[np.ndarray, "groups"], Float[np.ndarray, "groups"]]:
    """Return λ and μ̄ of every group, from the other groups only."""
    n, m = batch.n_groups, batch.group_sizes
    one_set = np.zeros(n, dtype=np.int64)
    mean = reduce_by_group(batch.rewards, batch.group_index, n) / m
    squares = reduce_by_group((batch.rewards - mean[batch.group_index]) ** 2, batch.group_index, n)
    noise = squares / np.maximum(m * (m - 1), 1)
    informative = reduce_others((m > 1).astype(np.float64), one_set, 1)
    v = reduce_others(noise, one_set, 1) / np.maximum(informative, 1)
    others_mean = reduce_others(mean, one_set, 1) / (n - 1)
    # Σ_{k≠i} (μ_k − μ̄_{−i})² = Σ c² − (Σ c)²/(n−1) for c measured from any origin near the μ_k
    origin = mean - mean.mean()
    s = (reduce_others(origin**2, one_set, 1) - reduce_others(origin, one_set, 1) ** 2 / (n - 1)) / (n - 1)
    total = v + s + eps
    shrinkage = np.divide(v, total, out=np.zeros(n), where=(v > 0) & (total > 0))
    return shrinkage * ((n - 1) / n if shrink_factor else 1.0), others_mean
