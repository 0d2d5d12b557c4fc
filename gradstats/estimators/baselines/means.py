r"""ReMax: the reward of the greedy completion as the baseline."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.baselines.grouping import (
    MEAN_BIAS,
    TRUE_GRADIENT,
    WEIGHTED_BIAS,
    first_of_group,
    mean_scale,
    reduce_by_group,
    reduce_others,
    rewards_to_go,
    unbiased,
    unbiased_if_loo,
)
from gradstats.estimators.baselines.scaled import divide_by_deviation, standard_deviation
from gradstats.estimators.baselines.weighted import (
    apply_singleton,
    optimal_constant,
    relative_ratios,
    weighted_mean_advantages,
)
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM
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
        batch: the completions.
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
        batch: the completions.
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
        batch: the completions.
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
        batch: the completions.
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
        batch: the completions.
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
        batch: the completions.
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


@estimator(
    "pass_at_k",
    display="pass@k",
    baseline="best of the others, for the best alone",
    scale="– (normalize: group std + ε)",
    bias="another objective: E[ĝ] = 1/N·∇E[max R of the group]",
    source="Tang et al. 2025, 2503.19595",
    unit=lambda parameters: f"{SEQUENCE_SUM} / group_std" if parameters["normalize"] else SEQUENCE_SUM,
)
def pass_at_k(
    batch: Batch, normalize: bool = False, ddof: int = 1, eps: float = 1e-6, singleton: str = "zero"
) -> Float[np.ndarray, "n"]:
    r""":math:`A_i = r_\mathrm{max} - r_\mathrm{second}` for the best completion of the group, otherwise 0. 2503.19595.

    Equal to :math:`\max(R_i - \max_{j≠i} R_j, 0)`, a leave-one-out baseline for the objective :math:`E[\max_j R_j]`:
    E[ĝ] is 1/N of the gradient of that objective, and not a multiple of ∇J. A tie for the best gives 0 to all.

    Args:
        batch: the completions.
        normalize: divide by the group's standard deviation + ε, as verl does, which adds a bias.
        ddof: the divisor of that variance is N − ddof.
        eps: ε.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0], lengths=[1, 2, 3], groups=["a"] * 3)
        >>> estimators.pass_at_k().advantages(batch)
        array([1., 0., 0.])
    """
    index, n_groups = batch.group_index, batch.n_groups
    alone = batch.group_sizes[index] == 1
    lead = np.maximum(batch.rewards - reduce_others(batch.rewards, index, n_groups, np.maximum, -np.inf), 0.0)
    if normalize:
        deviation = standard_deviation(batch.rewards, index, n_groups, ddof)
        lead = divide_by_deviation(lead, np.where(alone, 1.0, deviation), eps, "pass_at_k")
    return apply_singleton(lead, alone, batch.rewards, singleton)


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


@estimator(
    "remax",
    display="ReMax",
    baseline="reward of the greedy completion",
    bias=TRUE_GRADIENT,
    source="Li et al. 2023, 2310.10505",
    level="token",
    needs=("greedy_rewards",),
    expected_scale=unbiased,
)
def remax(batch: Batch) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`A_{i,t} = G_{i,t} - R(\text{greedy completion of the prompt})`. ReMax, 2310.10505.

    Needs ``greedy_rewards``, one per completion. The baseline does not depend on the samples, so E[ĝ] = ∇J.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch([1, 0], lengths=[1, 2], groups=["a", "a"], greedy_rewards=[0.5, 0.5])
        >>> estimators.remax().advantages(batch)
        array([[ 0.5,  0. ],
               [-0.5, -0.5]])
    """
    assert batch.greedy_rewards is not None
    return rewards_to_go(batch) - batch.greedy_rewards[:, None]
