"""Advantages beyond a weighted mean: divided by a spread, of the best alone, quantiles, soft maxima, shrunk, white."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float, Int

from gradstats.estimators.baselines.grouping import (
    WEIGHTED_BIAS,
    apply_singleton,
    first_of_group,
    reduce_by_group,
    reduce_others,
    rewards_to_go,
    unbiased,
    unbiased_if_loo,
    weighted_mean_advantages,
)
from gradstats.estimators.batch import COLUMN, Batch
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
    E[ĝ] is not a multiple of ∇J: each prompt is rescaled by the spread of its rewards, read as the curvature of its
    gradient in 2601.23135. ``loo=True`` takes the mean of the others; the standard deviation still includes every
    sample, so the bias remains.

    Args:
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


def whiten(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return (v − mean)·(var + 1e-8)^{−1/2} over tokens: (N, T) weighted by the mask, or (N,) by the lengths."""
    count = weights.sum()
    if count < 2:
        warnings.warn(
            "whitened advantages are NaN: one token has no variance; give a larger batch",
            RuntimeWarning,
            stacklevel=2,
        )
        return np.full_like(values, np.nan)
    mean = (weights * values).sum() / count
    variance = (weights * (values - mean) ** 2).sum() / (count - 1)
    return (values - mean) / np.sqrt(variance + 1e-8)


@estimator(
    "reinforce_pp",
    display="REINFORCE++",
    baseline="token mean of the batch's returns",
    scale="batch token std",
    bias="biased: mean and std of the batch include the sample",
    source="Hu et al. 2025, 2501.03262",
    level="token",
    across_groups=True,
    unit=f"{SEQUENCE_SUM} / batch_token_std",
)
def reinforce_pp(batch: Batch, gamma: float = 1.0) -> Float[np.ndarray, "n t"]:
    r""":math:`A_{i,t} = (G_{i,t} - \bar G)/\sqrt{\mathrm{var}\,G + 10^{-8}}` over all tokens. REINFORCE++, 2501.03262.

    Token-weighted mean, unbiased variance, divided by √(var + 1e-8). Batch-level; mean and variance include the
    sample itself, and E[ĝ] is not a known multiple of ∇J.

    Args:
        batch: the completions; with ``token_rewards``, G sums them, else G is :math:`R_i` at every counted token.
        gamma: the discount per counted token.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.reinforce_pp().advantages(batch).round(2)
        array([[ 0.54,  0.  ,  0.  ],
               [-1.62, -1.62,  0.  ],
               [ 0.54,  0.54,  0.54],
               [ 0.54,  0.54,  0.  ]])
    """
    return whiten(rewards_to_go(batch, gamma), batch.mask)


@estimator(
    "reinforce_pp_baseline",
    display="REINFORCE++ baseline",
    baseline="group mean, then token mean of the batch",
    scale="batch token std",
    bias="biased: mean and std of the batch include the sample",
    source="Hu et al. 2025, 2501.03262",
    across_groups=True,
    unit=f"{SEQUENCE_SUM} / batch_token_std",
)
def reinforce_pp_baseline(batch: Batch, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - \bar R`, whitened over the batch's tokens. REINFORCE++-baseline, 2501.03262.

    Every token of a completion has the same value, so the result is (N,), and a completion counts :math:`T_i` times in
    mean and variance. Batch-level; both include the sample itself, and E[ĝ] is not a known multiple of ∇J.

    Args:
        loo: take the mean of the others before whitening.
        singleton: what a group of one gets before whitening: 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN
            (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.reinforce_pp_baseline().advantages(batch).round(2)
        array([ 1.76, -1.37,  0.2 ,  0.2 ])
    """
    ones = np.ones_like(batch.rewards)
    return whiten(weighted_mean_advantages(batch, ones, loo, "group", singleton), batch.lengths)


@estimator(
    "quantile",
    display="QAE",
    baseline="q-quantile of the group",
    bias=WEIGHTED_BIAS,
    source="QAE 2509.22611",
    expected_scale=unbiased_if_loo,
)
def quantile(batch: Batch, q: float = 0.5, loo: bool = False, singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r"""Return :math:`A_i = R_i - Q_q(R)`, the q-quantile of the group's rewards, interpolated. QAE, 2509.22611.

    For 0/1 rewards only rare successes have A ≠ 0 while the success rate is below 1 − q, and only rare failures above.
    By default :math:`R_i` enters its own baseline, which shrinks and turns E[ĝ]; ``loo=True`` is unbiased.

    Args:
        q: which quantile.
        loo: that of the others.
        singleton: what a group of one gets: advantage 0 (``"zero"``), :math:`R_i` (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 0], lengths=[1, 2, 3, 2], groups=["a"] * 4)
        >>> estimators.quantile(q=0.4).advantages(batch)
        array([1., 0., 0., 0.])
    """
    baseline = np.zeros_like(batch.rewards)
    for group in range(batch.n_groups):
        rows = np.flatnonzero(batch.group_index == group)
        rewards = batch.rewards[rows]
        if loo and rows.size > 1:
            baseline[rows] = [np.quantile(np.delete(rewards, place), q) for place in range(rows.size)]
        else:
            baseline[rows] = np.quantile(rewards, q)
    alone = batch.group_sizes[batch.group_index] == 1
    return apply_singleton(batch.rewards - baseline, alone, batch.rewards, singleton)


@estimator(
    "ebpo",
    display="EBPO",
    baseline="group mean shrunk to the batch mean",
    scale="batch std of the advantages + ε",
    bias="biased: own sample, batch mean and std",
    source="2602.05165",
    across_groups=True,
    unit=lambda parameters: f"{SEQUENCE_SUM} / batch_std" if parameters["normalize"] else SEQUENCE_SUM,
)
def ebpo(batch: Batch, normalize: bool = True, eps: float = 1e-6) -> Float[np.ndarray, "n"]:
    r""":math:`A_i = R_i - (1-S)\bar R - S\bar μ`, :math:`S = \frac{σ²/N}{σ²/N + τ²}`, whitened. EBPO, 2602.05165.

    σ² is the mean variance within groups, τ² the variance of the groups' means and :math:`\bar μ` the mean of all
    rewards: those of the batch (population variances), where the paper keeps running ones. Beside ``james_stein`` it
    counts the sample itself, and the noise of the groups' means in τ², which shrinks less. A group of equal rewards
    keeps a gradient.

    Args:
        normalize: subtract the mean of the batch's advantages, and divide by their standard deviation + ε.
        eps: ε.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 1, 1], lengths=[1, 2, 3, 2], groups=["a", "a", "b", "b"])
        >>> estimators.ebpo(normalize=False).advantages(batch)  # S = ½
        array([ 0.375, -0.625,  0.125,  0.125])
    """
    index, n, sizes = batch.group_index, batch.n_groups, batch.group_sizes
    mean = reduce_by_group(batch.rewards, index, n) / sizes
    within = float(np.mean(reduce_by_group((batch.rewards - mean[index]) ** 2, index, n) / sizes))
    noise = within / sizes
    total = noise + mean.var()
    shrinkage = np.divide(noise, total, out=np.zeros(n), where=total > 0)
    baseline = (1 - shrinkage) * mean + shrinkage * batch.rewards.mean()
    advantages = batch.rewards - baseline[index]
    if not normalize:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + eps)


#: The name among GDPO's columns of the reward itself.
_REWARD = "reward"


def _reward_weights(columns: str) -> dict[str, float]:
    """Return the weight of each column of "accuracy=1, format=0.5"; of one without a weight 1."""
    found = {}
    for part in filter(str.strip, columns.split(",")):
        name, _, weight = part.partition("=")
        found[name.strip()] = float(weight or 1)
    return found


@estimator(
    "gdpo",
    display="GDPO",
    baseline="group mean of each reward",
    scale="group std of each, batch std of the sum",
    bias="biased: each reward and prompt is rescaled by its spread",
    source="2601.05242",
    across_groups=True,
    needs=lambda parameters: tuple(
        f"{COLUMN}{name}" for name in _reward_weights(parameters.get("columns", "")) if name != _REWARD
    ),
    unit=f"{SEQUENCE_SUM} / group_std / batch_std",
)
def gdpo(batch: Batch, columns: str, convention: str = "trl", singleton: str = "zero") -> Float[np.ndarray, "n"]:
    r""":math:`A_i = \sum_k w_k\frac{r_{ik} - \bar r_k}{\mathrm{std}_k + ε}` over several rewards, whitened. 2601.05242.

    Each reward is normalised within the group before they are added, so that none drowns the others; the sum is then
    whitened over the batch. The rewards are columns of the rollouts, their sum need not be the reward.

    Args:
        columns: the rewards' columns with their weights, as in ``"accuracy=1, format=0.5"``; ``reward`` is the reward.
        convention: "trl" (``normalize_then_sum``) whitens over completions with ε = 1e-4 throughout, "verl" over tokens
            with ε = 1e-6.
        singleton: what a reward of a group of one gets: 0 (``"zero"``), itself (``"reward"``) or NaN (``"nan"``).

    Example:
        >>> from gradstats import estimators
        >>> rewards = {"accuracy": [1, 0, 1, 1], "format": [1, 1, 0, 1]}
        >>> batch = estimators.Batch([2, 1, 1, 2], [1, 2, 3, 2], ["a", "a", "b", "b"], columns=rewards)
        >>> estimators.gdpo("accuracy=1, format=2").advantages(batch).round(2)
        array([ 0.55, -0.55, -1.1 ,  1.1 ])
    """
    eps = 1e-4 if convention == "trl" else 1e-6
    total = np.zeros_like(batch.rewards)
    for name, weight in _reward_weights(columns).items():
        values = batch.rewards if name == _REWARD else batch.columns[name]
        of_one = batch.with_fields(rewards=np.asarray(values, dtype=np.float64))
        total += weight * grpo(eps=eps, singleton=singleton).advantages(of_one)
    if convention == "verl":
        return whiten(total, batch.lengths)
    return (total - total.mean()) / (total.std(ddof=1) + eps) if total.size > 1 else 0.0 * total
