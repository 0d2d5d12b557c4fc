r"""The weighted mean of rewards as a baseline: Σ w_j R_j / Σ w_j over a group or the batch."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float, Int

from gradstats.estimators.baselines.grouping import first_of_group, reduce_by_group, reduce_others, reference_sets
from gradstats.estimators.batch import Batch
from gradstats.estimators.ratios import sequence_log_ratios


def weighted_mean_advantages(
    batch: Batch,
    weights: Float[np.ndarray, "n"],
    loo: bool,
    scope: str,
    singleton: str,
    ratio_power: int = 0,
) -> Float[np.ndarray, "n"]:
    r"""Return A_i = R_i − Σ_j w_j R_j / Σ_j w_j over the completion's group or batch, without j = i when ``loo``.

    Args:
        batch: the completions.
        weights: w, non-negative, (N,).
        loo: leave sample i out of its own baseline.
        scope: ``"group"`` or ``"batch"``.
        singleton: what a set of one completion gets: 0 (``"zero"``), its reward (``"reward"``) or NaN (``"nan"``).
        ratio_power: weights are multiplied by this power of the completion's ratio π/π_old; 0 on-policy.

    Returns:
        Advantages, (N,); NaN, with a warning, where the weights sum to zero.
    """
    index, n_sets = reference_sets(batch, scope)
    if ratio_power:
        weights = weights * relative_ratios(batch, index, n_sets, ratio_power)
    centred = batch.rewards - first_of_group(batch.rewards, index, n_sets)
    if loo:
        numerator = reduce_others(weights * centred, index, n_sets)
        denominator = reduce_others(weights, index, n_sets)
    else:
        numerator = reduce_by_group(weights * centred, index, n_sets)[index]
        denominator = reduce_by_group(weights, index, n_sets)[index]
    alone = np.bincount(index, minlength=n_sets)[index] == 1
    undefined = (denominator == 0) & ~alone
    if undefined.any():
        warnings.warn(
            f"the baseline of {int(undefined.sum())} completions is NaN: all weights of its average are zero; "
            "check the lengths or norms that weight it",
            RuntimeWarning,
            stacklevel=2,
        )
    baseline = np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)
    return apply_singleton(centred - baseline, alone, batch.rewards, singleton)


def apply_singleton(
    advantages: Float[np.ndarray, "n"], alone: np.ndarray, rewards: Float[np.ndarray, "n"], singleton: str
) -> Float[np.ndarray, "n"]:
    """Set the advantages of completions that are alone in their set by the ``singleton`` rule."""
    rule = {"zero": np.zeros_like(rewards), "reward": rewards, "nan": np.full_like(rewards, np.nan)}
    return np.where(alone, rule[singleton], advantages)


def relative_ratios(batch: Batch, index: Int[np.ndarray, "n"], n_sets: int, power: int) -> Float[np.ndarray, "n"]:
    """Return a power of each completion's ratio π/π_old, divided by the greatest of its set."""
    log_weights = power * sequence_log_ratios(batch)
    return np.exp(log_weights - reduce_by_group(log_weights, index, n_sets, np.maximum)[index])


def optimal_constant(rewards: Float[np.ndarray, "n"], sq_norms: Float[np.ndarray, "n"]) -> float:
    r"""Return :math:`b^* = \sum_j R_j‖S_j‖²/\sum_j‖S_j‖²`, the constant that minimises tr Cov((R − b)S).

    Weaver & Tao, UAI 2001; Greensmith, Bartlett & Baxter, JMLR 5, 2004.

    Args:
        rewards: :math:`R_j`, (N,).
        sq_norms: :math:`‖S_j‖²`, (N,).

    Returns:
        b*; NaN, with a warning, when every squared norm is zero.

    Example:
        >>> from gradstats import estimators
        >>> import numpy as np
        >>> estimators.optimal_constant(np.array([1.0, 0.0, 1.0]), np.array([2.0, 3.0, 1.0]))
        0.5
    """
    total = float(np.sum(sq_norms))
    if total == 0:
        warnings.warn("the optimal constant is NaN: every squared gradient norm is zero", RuntimeWarning, stacklevel=2)
        return float("nan")
    return float(np.dot(rewards, sq_norms)) / total
