"""Every sequence-level estimator as plain loops written directly from its formula.

Slow on purpose, and sharing no code with ``gradstats.estimators``: of the Batch only the raw fields are read.
Each returns (N,) advantages. ``NAIVE_ESTIMATORS`` finds them by name; the token-level ones are in
``naive_token_estimators``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gradstats.estimators import Batch


def members(batch: Batch, i: int, loo: bool, scope: str = "group") -> list[int]:
    """Return the completions whose rewards enter the baseline of completion i."""
    n = len(batch.rewards)
    same = [j for j in range(n) if scope == "batch" or batch.groups[j] == batch.groups[i]]
    return [j for j in same if j != i] if loo else same


def alone(batch: Batch, i: int, scope: str = "group") -> bool:
    """Return whether completion i is the only one of its set."""
    return len(members(batch, i, loo=False, scope=scope)) == 1


def lone_advantage(reward: float, singleton: str) -> float:
    """Return the advantage of a completion that is alone in its set."""
    return {"zero": 0.0, "reward": reward, "nan": math.nan}[singleton]


def weighted(batch: Batch, weight: Callable[[int], float], loo: bool, scope: str, singleton: str) -> np.ndarray:
    """Return R_i − Σ_j w_j R_j / Σ_j w_j."""
    advantages = []
    for i, reward in enumerate(batch.rewards):
        if alone(batch, i, scope):
            advantages.append(lone_advantage(reward, singleton))
            continue
        numerator = sum(weight(j) * batch.rewards[j] for j in members(batch, i, loo, scope))
        denominator = sum(weight(j) for j in members(batch, i, loo, scope))
        advantages.append(reward - numerator / denominator)
    return np.array(advantages)


def reinforce(batch: Batch) -> np.ndarray:
    """Return R_i."""
    return np.array([float(reward) for reward in batch.rewards])


def constant(batch: Batch, b: float | str = "optimal") -> np.ndarray:
    """Return R_i − b, b* = Σ R‖S‖²/Σ‖S‖² over the pool."""
    if b == "optimal":
        assert batch.sq_norms is not None
        total = sum(batch.sq_norms)
        b = sum(r * s for r, s in zip(batch.rewards, batch.sq_norms, strict=True)) / total
    return np.array([reward - float(b) for reward in batch.rewards])


def batch_mean(batch: Batch, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − mean over the batch."""
    return weighted(batch, lambda j: 1.0, loo, "batch", singleton)


def group_mean(batch: Batch, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − R̄."""
    return weighted(batch, lambda j: 1.0, loo, "group", singleton)


def rloo(batch: Batch, loo: bool = True, singleton: str = "zero") -> np.ndarray:
    """Return R_i − mean of the others."""
    return weighted(batch, lambda j: 1.0, loo, "group", singleton)


def asymmetric(batch: Batch, delta: float = -0.1, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − (R̄ + δ)."""
    plain = group_mean(batch, loo, singleton)
    return np.array([a if alone(batch, i) else a - delta for i, a in enumerate(plain)])


def token_mean(batch: Batch, loo: bool = False, scope: str = "group", singleton: str = "zero") -> np.ndarray:
    """Return R_i − Σ T_jR_j/ΣT_j."""
    return weighted(batch, lambda j: float(batch.lengths[j]), loo, scope, singleton)


def length_weighted(
    batch: Batch, alpha: float, loo: bool = False, scope: str = "group", singleton: str = "zero"
) -> np.ndarray:
    """Return R_i − Σ T_j^{2α}R_j/ΣT_j^{2α}."""
    return weighted(batch, lambda j: float(batch.lengths[j]) ** (2 * alpha), loo, scope, singleton)


def norm_weighted(batch: Batch, loo: bool = False, scope: str = "group", singleton: str = "zero") -> np.ndarray:
    """Return R_i − Σ‖S_j‖²R_j/Σ‖S_j‖²."""
    sq_norms = batch.sq_norms
    assert sq_norms is not None
    return weighted(batch, lambda j: float(sq_norms[j]), loo, scope, singleton)


def group_deviation(batch: Batch, i: int, ddof: int) -> float:
    """Return the standard deviation of the rewards of i's group."""
    rewards = [batch.rewards[j] for j in members(batch, i, loo=False)]
    mean = sum(rewards) / len(rewards)
    return math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof))


def grpo(batch: Batch, ddof: int = 1, eps: float = 1e-6, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return (R_i − R̄)/(std + ε)."""
    plain = group_mean(batch, loo, singleton)
    return np.array(
        [a if alone(batch, i) else a / (group_deviation(batch, i, ddof) + eps) for i, a in enumerate(plain)]
    )


def pass_at_k(
    batch: Batch, normalize: bool = False, ddof: int = 1, eps: float = 1e-6, singleton: str = "zero"
) -> np.ndarray:
    """Return r_max − r_second for the best, 0 else."""
    advantages = []
    for i, reward in enumerate(batch.rewards):
        if alone(batch, i):
            advantages.append(lone_advantage(reward, singleton))
            continue
        same = members(batch, i, loo=False)
        ranked = sorted(same, key=lambda j: -batch.rewards[j])
        lead = batch.rewards[ranked[0]] - batch.rewards[ranked[1]] if i == ranked[0] else 0.0
        advantages.append(lead / (group_deviation(batch, i, ddof) + eps) if normalize else lead)
    return np.array(advantages)


def kimi(batch: Batch, tau: float, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − τ·log mean_j exp(R_j/τ)."""
    advantages = []
    for i, reward in enumerate(batch.rewards):
        if alone(batch, i):
            advantages.append(lone_advantage(reward, singleton))
            continue
        exponents = [batch.rewards[j] / tau for j in members(batch, i, loo)]
        top = max(exponents)  # τ·log mean exp, safe from overflow
        mean = sum(math.exp(e - top) for e in exponents) / len(exponents)
        advantages.append(reward - tau * (top + math.log(mean)))
    return np.array(advantages)


def max_rl(batch: Batch, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return (R_i − R̄)/R̄, 0 for a group of zeros."""
    plain = group_mean(batch, loo, singleton)
    advantages = []
    for i in range(len(plain)):
        rewards = [batch.rewards[j] for j in members(batch, i, loo=False)]
        if alone(batch, i):
            advantages.append(plain[i])
        elif all(reward == 0 for reward in rewards):
            advantages.append(0.0)
        else:
            advantages.append(plain[i] / (sum(rewards) / len(rewards)))
    return np.array(advantages)


def james_stein(
    batch: Batch, loo: bool = True, shrink_factor: bool = True, eps: float = 0.0, singleton: str = "zero"
) -> np.ndarray:
    """Return R_i − [(1−λ)(mean of the others) + λ(mean of the other groups)]."""
    groups = sorted(set(batch.groups.tolist()))
    rewards = {g: [r for r, label in zip(batch.rewards, batch.groups, strict=True) if label == g] for g in groups}
    mean = {g: sum(rewards[g]) / len(rewards[g]) for g in groups}
    n = len(groups)
    advantages = []
    for i, reward in enumerate(batch.rewards):
        if alone(batch, i):
            advantages.append(lone_advantage(reward, singleton))
            continue
        same = members(batch, i, loo)
        same_mean = sum(batch.rewards[j] for j in same) / len(same)
        others = [g for g in groups if g != batch.groups[i]]
        shrinkage, others_mean = 0.0, 0.0
        if others:
            others_mean = sum(mean[g] for g in others) / len(others)
            spreads = []
            for g in others:
                m = len(rewards[g])
                if m > 1:
                    spreads.append(sum((r - mean[g]) ** 2 for r in rewards[g]) / (m * (m - 1)))
            v = sum(spreads) / len(spreads) if spreads else 0.0
            s = sum((mean[g] - others_mean) ** 2 for g in others) / len(others)
            shrinkage = v / (v + s + eps) if v + s > 0 else 0.0
            if shrink_factor:
                shrinkage *= (n - 1) / n
        advantages.append(reward - ((1 - shrinkage) * same_mean + shrinkage * others_mean))
    return np.array(advantages)


def whiten(values: list[float]) -> list[float]:
    """Return (v − mean)·rsqrt(var + 1e-8), unbiased variance."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


def reinforce_pp_baseline(batch: Batch, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − R̄, whitened over the batch's tokens."""
    plain = group_mean(batch, loo, singleton)
    tokens = [(i, float(plain[i])) for i in range(len(plain)) for _ in range(int(batch.lengths[i]))]
    white = whiten([value for _, value in tokens])
    return np.array([white[[owner for owner, _ in tokens].index(i)] for i in range(len(plain))])


NAIVE_ESTIMATORS: dict[str, Callable[..., np.ndarray]] = {
    "reinforce": reinforce,
    "constant": constant,
    "batch_mean": batch_mean,
    "group_mean": group_mean,
    "rloo": rloo,
    "dr_grpo": group_mean,
    "asymmetric": asymmetric,
    "token_mean": token_mean,
    "length_weighted": length_weighted,
    "norm_weighted": norm_weighted,
    "grpo": grpo,
    "pass_at_k": pass_at_k,
    "kimi": kimi,
    "max_rl": max_rl,
    "james_stein": james_stein,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}
