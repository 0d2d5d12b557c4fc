r"""MaxRL: the group mean as baseline and as scale, towards the gradient of the log success rate."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.baselines.grouping import reduce_by_group
from gradstats.estimators.baselines.weighted_mean import apply_singleton, weighted_mean_advantages
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator


def group_mean_scale(batch: Batch) -> Float[np.ndarray, "n"]:
    """Return R̄ of each completion's group; infinite, so that the quotient is 0, where all its rewards are 0.

    Where R̄ = 0 although rewards differ, it is NaN, with a warning.
    """
    index, n_groups = batch.group_index, batch.n_groups
    mean = (reduce_by_group(batch.rewards, index, n_groups) / batch.group_sizes)[index]
    all_zero = reduce_by_group(np.abs(batch.rewards), index, n_groups, np.maximum)[index] == 0
    undefined = (mean == 0) & ~all_zero
    if undefined.any():
        warnings.warn(
            f"advantages of {int(undefined.sum())} completions are NaN: they are divided by the mean reward of "
            "their group, which is 0 although the rewards differ; use rewards of at least 0",
            RuntimeWarning,
            stacklevel=2,
        )
    return np.where(all_zero, np.inf, np.where(undefined, np.nan, mean))


def of_both_signs(batch: Batch) -> Bool[np.ndarray, "groups"]:
    r"""Return which groups hold rewards of both signs, so that nothing bounds A = (R − R̄)/R̄.

    Where all rewards of a group of N have one sign, :math:`0 ≤ R_i/\bar R ≤ N` and A is between −1 and N − 1.
    """
    lowest, highest = (
        reduce_by_group(batch.rewards, batch.group_index, batch.n_groups, operation)
        for operation in (np.minimum, np.maximum)
    )
    return (lowest < 0) & (highest > 0)


@estimator(
    "max_rl",
    display="MaxRL",
    baseline="group mean",
    scale="group mean",
    bias="another objective: for 0/1 rewards Σ_{k≤N−2}(1−p)^k·∇p for each prompt",
    source="2602.02710",
    unit=f"{SEQUENCE_SUM} / group_mean",
)
def max_rl(batch: Batch, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = (R_i - \bar R)/\bar R`; a group whose rewards are all zero gives 0. MaxRL, 2602.02710.

    For 0/1 rewards with success rate p the expected gradient of a prompt's group is
    :math:`\sum_{k=0}^{N-2} (1-p)^k ∇p`: a multiple of the prompt's gradient that grows as the prompt gets harder and
    tends to ∇ log p. Over several prompts E[ĝ] is therefore not a multiple of ∇J.

    Its source defines it for 0/1 rewards. Rewards of at least 0 keep A between −1 and N − 1. A negative group mean
    reverses the sign of the gradient. Where the rewards of a group have both signs, R̄ may come near 0: if its density
    there is positive, as with continuous rewards, :math:`E|1/\bar R| = ∞`, and the gradient has neither expectation nor
    variance.

    Args:
        batch: the completions.
        loo: subtract the mean of the others, which multiplies A by N/(N−1); the divisor remains R̄.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0], lengths=[1, 2, 3], groups=["a"] * 3)
        >>> estimators.max_rl().advantages(batch)
        array([ 2., -1., -1.])
    """
    ones = np.ones_like(batch.rewards)
    advantages = weighted_mean_advantages(batch, ones, loo, "group", "zero") / group_mean_scale(batch)
    return apply_singleton(advantages, batch.group_sizes[batch.group_index] == 1, batch.rewards, singleton)
