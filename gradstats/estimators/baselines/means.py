"""Plain means as baselines: none, a constant, and the mean of the batch or of the group."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.grouping import (
    MEAN_BIAS,
    TRUE_GRADIENT,
    mean_scale,
    relative_ratios,
    unbiased,
    weighted_mean_advantages,
)
from gradstats.estimators.batch import Batch
from gradstats.estimators.registry import estimator


@estimator(
    "reinforce",
    display="REINFORCE",
    baseline="none",
    bias=TRUE_GRADIENT,
    source="Williams 1992",
    expected_scale=unbiased,
)
def reinforce(batch: Batch) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i`. Williams, Machine Learning 8, 1992. Unbiased: E[ĝ] = ∇J.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.reinforce().advantages(batch)
        array([1., 0., 0., 1.])
    """
    return batch.rewards


@estimator(
    "constant",
    display="constant",
    baseline="constant b, or b* = E[R‖S‖²]/E‖S‖²",
    bias='b given: E[ĝ] = ∇J; b="optimal": biased by O(1/pool)',
    source="Weaver & Tao 2001; Greensmith et al. 2004",
    needs=lambda parameters: ("sq_norms",) if parameters["b"] == "optimal" else (),
    across_groups=lambda parameters: parameters["b"] == "optimal",
    expected_scale=lambda group_size, parameters: None if parameters["b"] == "optimal" else 1.0,
)
def constant(batch: Batch, b: float | str = "optimal", off_policy: bool = False) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - b`, with a given b or the optimal constant of this pool.

    With a number it is unbiased, E[ĝ] = ∇J. With ``b="optimal"``, b is :math:`b^* = \sum_j R_j‖S_j‖² / \sum_j‖S_j‖²`
    over the whole pool, the own sample included: it needs ``sq_norms``, is batch-level, and E[ĝ] differs from ∇J by a
    term of order 1/pool. To hold b* fixed instead, compute it once with :func:`optimal_constant` and pass the
    number; ``norm_weighted(scope="batch", loo=True)`` is the unbiased counterpart.

    Weaver & Tao, UAI 2001; Greensmith, Bartlett & Baxter, JMLR 5, 2004.

    Args:
        b: the constant, or ``"optimal"`` (the default).
        off_policy: with ``"optimal"``, weight each completion by ρ² as well, :math:`ρ = π/π_\mathrm{old}` of the whole
            completion: b* is then E[ρ²R‖S‖²]/E[ρ²‖S‖²], the optimum under the weights ρS.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.constant(b=0.5).advantages(batch)
        array([ 0.5, -0.5, -0.5,  0.5])
    """
    if b == "optimal":
        assert batch.sq_norms is not None
        weights = batch.sq_norms
        if off_policy:
            weights = weights * relative_ratios(batch, np.zeros(weights.size, dtype=np.int64), 1, power=2)
        return batch.rewards - optimal_constant(batch.rewards, weights)
    return batch.rewards - float(b)


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


@estimator(
    "batch_mean",
    display="batch mean",
    baseline="mean of the batch",
    bias="own sample: (n−1)/n·∇J for n in the batch; LOO: ∇J",
    source="common practice",
    across_groups=True,
    expected_scale=lambda group_size, parameters: 1.0 if parameters["loo"] else None,
)
def batch_mean(batch: Batch, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \frac1n\sum_j R_j` over the n completions of the whole batch.

    By default :math:`R_i` enters its own baseline: E[ĝ] = (n−1)/n·∇J with n completions in the batch, a factor that the
    group size does not determine. ``loo=True`` leaves :math:`R_i` out and is unbiased.

    Args:
        loo: leave sample i out of its own baseline.
        singleton: what a batch of one completion gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN
            (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.batch_mean().advantages(batch)
        array([ 0.25, -0.75,  0.25,  0.25])
    """
    return weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "batch", singleton)


@estimator(
    "group_mean",
    display="group mean",
    baseline="group mean",
    bias=MEAN_BIAS,
    source="Shao et al. 2024, 2402.03300",
    expected_scale=mean_scale,
)
def group_mean(
    batch: Batch, loo: bool = False, singleton: str = "zero", off_policy: bool = False
) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \bar R`, the mean over the N completions of the prompt.

    The mean includes R_i: A is (N−1)/N times that of :func:`rloo`, so E[ĝ] = (N−1)/N·∇J. ``loo=True`` is
    :func:`rloo`.

    Args:
        loo: leave sample i out of its own baseline.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
        off_policy: weight the rewards of the mean by :math:`ρ_j = π/π_\mathrm{old}` of the whole completion: an
            estimate of the scored policy's mean reward from completions of another one.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0], lengths=[1, 2, 3], groups=["a"] * 3)
        >>> estimators.group_mean().advantages(batch).round(2)
        array([ 0.67, -0.33, -0.33])
    """
    return weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", singleton, int(off_policy))


@estimator(
    "rloo",
    display="RLOO",
    baseline="leave-one-out mean",
    bias=TRUE_GRADIENT,
    source="Ahmadian et al. 2024, 2402.14740",
    expected_scale=mean_scale,
)
def rloo(batch: Batch, loo: bool = True, singleton: str = "zero", off_policy: bool = False) -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \frac{1}{N-1}\sum_{j≠i}R_j`. Ahmadian et al. 2402.14740. Unbiased: E[ĝ] = ∇J.

    Args:
        loo: ``False`` includes sample i, which is :func:`group_mean`.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).
        off_policy: weight the rewards of the mean by :math:`ρ_j = π/π_\mathrm{old}` of the whole completion: an
            estimate of the scored policy's mean reward from completions of another one.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0], lengths=[10, 20, 30], groups=["a", "a", "a"])
        >>> estimators.rloo().advantages(batch)
        array([ 1. , -0.5, -0.5])
        >>> estimators.rloo().expected_scale(group_size=3)
        1.0
    """
    return weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", singleton, int(off_policy))


@estimator(
    "dr_grpo",
    display="Dr. GRPO baseline",
    baseline="group mean",
    bias=MEAN_BIAS,
    source="Liu et al. 2025, 2503.20783",
    expected_scale=mean_scale,
)
def dr_grpo(batch: Batch, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \bar R`: as a baseline the same as :func:`group_mean`.

    The constant length that distinguishes Dr. GRPO (2503.20783) is the aggregation of the recipe. By default
    E[ĝ] = (N−1)/N·∇J; ``loo=True`` is unbiased.

    Args:
        loo: leave sample i out of its own baseline.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.dr_grpo().advantages(batch)
        array([ 0.5, -0.5, -0.5,  0.5])
    """
    return weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", singleton)


@estimator(
    "asymmetric",
    display="asymmetric",
    baseline="group mean + δ",
    bias=MEAN_BIAS,
    source="Arnal et al. 2025, 2506.20520",
    expected_scale=mean_scale,
)
def asymmetric(batch: Batch, delta: float = -0.1, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - (\bar R + δ)`. Arnal et al. 2506.20520, δ = −0.1 for 0/1 rewards.

    The shift δ is a constant, so it changes the variance and not the mean: by default E[ĝ] = (N−1)/N·∇J;
    ``loo=True`` takes the mean of the others and is unbiased.

    Args:
        delta: the shift of the baseline.
        loo: leave sample i out of its own baseline.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.asymmetric(delta=-0.1).advantages(batch)
        array([ 0.6, -0.4, -0.4,  0.6])
    """
    advantages = weighted_mean_advantages(batch, np.ones_like(batch.rewards), loo, "group", singleton)
    alone = batch.group_sizes[batch.group_index] == 1
    return np.where(alone, advantages, advantages - delta)
