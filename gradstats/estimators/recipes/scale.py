r"""Divisors of advantages: none, the spread of the group or of the batch, or the group mean."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.group_std import divide_by_deviation, standard_deviation
from gradstats.estimators.baselines.maximum_likelihood import group_mean_scale
from gradstats.estimators.batch import Batch
from gradstats.estimators.recipes.components import component


@component("scale", "none", skip=2)
def none(advantages: Float[np.ndarray, "..."], batch: Batch) -> Float[np.ndarray, "..."]:
    """Return A unchanged."""
    return advantages


@component("scale", "group_std", skip=2)
def group_std(
    advantages: Float[np.ndarray, "..."], batch: Batch, ddof: int = 1, eps: float = 1e-6
) -> Float[np.ndarray, "..."]:
    r"""Return A/(std of the group's rewards + ε). GRPO, 2402.03300; a group of one is left unchanged.

    Args:
        advantages: (N,) or (N, T).
        batch: the completions.
        ddof: the divisor of the variance is N − ddof (verl and TRL 1; rllm and open-instruct 0).
        eps: ε (verl 1e-6, TRL 1e-4, open-instruct 1e-8).
    """
    alone = batch.group_sizes[batch.group_index] == 1
    deviation = standard_deviation(batch.rewards, batch.group_index, batch.n_groups, ddof)
    return _divide(advantages, np.where(alone, 1.0, deviation), np.where(alone, 0.0, eps))


@component("scale", "batch_std", skip=2, across_groups=lambda parameters: True)
def batch_std(
    advantages: Float[np.ndarray, "..."], batch: Batch, ddof: int = 1, eps: float = 1e-6
) -> Float[np.ndarray, "..."]:
    r"""Return A/(std of the whole batch's rewards + ε); batch-level.

    Args:
        advantages: (N,) or (N, T).
        batch: the completions.
        ddof: the divisor of the variance is n − ddof for n completions in the batch.
        eps: ε.
    """
    one_set = np.zeros(batch.rewards.size, dtype=np.int64)
    deviation = standard_deviation(batch.rewards, one_set, 1, ddof)
    return _divide(advantages, deviation, np.full_like(deviation, eps))


@component("scale", "group_mean", skip=2)
def group_mean(advantages: Float[np.ndarray, "..."], batch: Batch) -> Float[np.ndarray, "..."]:
    r"""Return A/R̄, and 0 for a group whose rewards are all zero. MaxRL, 2602.02710."""
    return advantages / _column(group_mean_scale(batch), advantages)


def _divide(
    advantages: Float[np.ndarray, "..."], deviation: Float[np.ndarray, "n"], eps: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "..."]:
    inverse = divide_by_deviation(np.ones_like(deviation), deviation + eps, 0.0, "the scaled advantage")
    return advantages * _column(inverse, advantages)


def _column(values: Float[np.ndarray, "n"], like: np.ndarray) -> np.ndarray:
    return values if like.ndim == 1 else values[:, None]
