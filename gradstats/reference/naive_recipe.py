"""The components of a recipe as plain loops over tokens: ratio and clip, aggregation, KL."""

from __future__ import annotations

import math

import numpy as np

from gradstats.estimators import Batch


def clipped_objective(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """Return min(ρA, clip(ρ)A), and not below cA for A < 0 where a dual clip c is given."""
    value = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


def token_weight(ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> float:
    """Return d/d log π of the clipped objective, by a central difference in log ρ."""
    step = 1e-6
    above = clipped_objective(ratio * math.exp(step), advantage, low, high, dual)
    below = clipped_objective(ratio * math.exp(-step), advantage, low, high, dual)
    return (above - below) / (2 * step)


def sequence_ratio(log_ratios: list[float]) -> float:
    """Return GSPO's s_i = exp(mean_t log ρ_t)."""
    return math.exp(sum(log_ratios) / len(log_ratios))


def cispo_weight(ratio: float, advantage: float, convention: str, low: float, high: float) -> float:
    """Return stop-grad(clip(ρ))·A in verl's and in TRL's convention."""
    if convention == "trl":
        return min(ratio, high) * advantage
    return min(max(ratio, 1 - low), 1 + high) * advantage


def aggregation_factor(batch: Batch, i: int, name: str, max_tokens: float | None = None) -> float:
    """Return the factor of each token of completion i within its group's gradient."""
    group = [j for j in range(len(batch.rewards)) if batch.groups[j] == batch.groups[i]]
    if name == "sequence_sum":
        return 1 / len(group)
    if name == "sequence_mean":
        return 1 / len(group) / int(batch.lengths[i])
    if name == "token_mean":
        return 1 / sum(int(batch.lengths[j]) for j in group)
    return 1 / (len(group) * (batch.mask.shape[1] if max_tokens is None else max_tokens))


def kl_value(log_ratio: float, kind: str) -> float:
    """Return k1, k2 or k3 at log π/π_ref."""
    if kind == "k1":
        return log_ratio
    return 0.5 * log_ratio**2 if kind == "k2" else math.exp(-log_ratio) - 1 + log_ratio


def kl_slope(log_ratio: float, kind: str) -> float:
    """Return dk/d log π, by a central difference."""
    step = 1e-6
    return (kl_value(log_ratio + step, kind) - kl_value(log_ratio - step, kind)) / (2 * step)


def differing_groups(batch: Batch) -> np.ndarray:
    """Return which groups, in sorted order of their labels, hold two different rewards."""
    kept = []
    for group in sorted(set(batch.groups.tolist())):
        rewards = {float(r) for r, label in zip(batch.rewards, batch.groups, strict=True) if label == group}
        kept.append(len(rewards) > 1)
    return np.array(kept)
