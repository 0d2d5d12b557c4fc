r"""The standard deviation of a group's rewards, and GRPO's advantage, which divides by it."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.baselines.grouping import first_of_group, reduce_by_group
from gradstats.estimators.baselines.weighted_mean import apply_singleton, weighted_mean_advantages
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.registry import estimator


def standard_deviation(
    values: Float[np.ndarray, "n"], index: Int[np.ndarray, "n"], n_sets: int, ddof: int
) -> Float[np.ndarray, "n"]:
    """Return the standard deviation over each completion's set; NaN where the set has at most ``ddof`` members."""
    centred = values - first_of_group(values, index, n_sets)
    sizes = np.bincount(index, minlength=n_sets)
    mean = reduce_by_group(centred, index, n_sets) / sizes
    squares = reduce_by_group((centred - mean[index]) ** 2, index, n_sets)
    freedom = sizes - ddof
    variance = np.divide(squares, freedom, out=np.full_like(squares, np.nan), where=freedom > 0)
    return np.sqrt(variance)[index]


def divide_by_deviation(
    advantages: Float[np.ndarray, "n"], deviation: Float[np.ndarray, "n"], eps: float, what: str
) -> Float[np.ndarray, "n"]:
    """Return A/(std + ε): NaN, with a warning, where std + ε is zero or undefined."""
    scale = deviation + eps
    defined = scale > 0
    if not defined.all():
        warnings.warn(
            f"{what} is NaN for {int((~defined).sum())} completions: the standard deviation of their rewards "
            "is zero or undefined and eps is 0; give eps > 0, or drop groups without spread",
            RuntimeWarning,
            stacklevel=2,
        )
    return np.divide(advantages, scale, out=np.full_like(advantages, np.nan), where=defined)


@estimator(
    "grpo",
    display="GRPO advantage",
    baseline="group mean",
    scale="group std + ε",
    bias="biased: each prompt is rescaled by the spread of its rewards, also with LOO",
    source="Shao et al. 2024, 2402.03300",
    unit=f"{SEQUENCE_SUM} / group_std",
)
def grpo(
    batch: Batch, ddof: int = 1, eps: float = 1e-6, loo: bool = False, singleton: str = "zero"
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = (R_i - \bar R)/(\mathrm{std} + ε)`. GRPO, 2402.03300.

    Implementations differ in the standard deviation and ε: verl uses ``ddof=1, eps=1e-6``, the defaults here;
    TRL ``ddof=1, eps=1e-4``; rllm ``ddof=0, eps=1e-6``; open-instruct ``ddof=0, eps=1e-8``.
    E[ĝ] is not a multiple of ∇J: each prompt is rescaled by the spread of its rewards. ``loo=True`` takes the
    mean of the others; the standard deviation still includes every sample, so the bias remains.

    Args:
        batch: the completions.
        ddof: the divisor of the variance is N − ddof.
        eps: ε, added to the standard deviation.
        loo: leave sample i out of its own mean.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
            (verl gives R/(1+ε).)

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.grpo().advantages(batch).round(2)
        array([ 0.87, -0.87, -0.87,  0.87])
    """
    advantages = weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", singleton)
    alone = batch.group_sizes[batch.group_index] == 1
    deviation = standard_deviation(batch.rewards, batch.group_index, batch.n_groups, ddof)
    scaled = divide_by_deviation(advantages, np.where(alone, 1.0, deviation), eps, "grpo")
    return apply_singleton(scaled, alone, batch.rewards, singleton)
