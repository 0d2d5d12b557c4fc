"""Every token-level estimator as plain loops written directly from its formula.

Each returns (N, T) advantages, 0 where masked out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gradstats.estimators import Batch
from gradstats.reference.naive_estimators import members, whiten


def counted(batch: Batch, i: int) -> list[int]:
    """Return the counted positions of completion i."""
    return [t for t in range(batch.mask.shape[1]) if batch.mask[i, t]]


def reward_at(batch: Batch, i: int, t: int) -> float:
    """Return r_{i,t}; without token rewards R_i sits on the last counted token."""
    if batch.token_rewards is not None:
        return float(batch.token_rewards[i, t])
    return float(batch.rewards[i]) if t == counted(batch, i)[-1] else 0.0


def return_at(batch: Batch, i: int, t: int, gamma: float = 1.0) -> float:
    """Return G_{i,t} over counted tokens."""
    ahead = [u for u in counted(batch, i) if u >= t]
    return sum(gamma**step * reward_at(batch, i, u) for step, u in enumerate(ahead))


def fill(batch: Batch, value: Callable[[int, int], float]) -> np.ndarray:
    """Return (N, T) with ``value(i, t)`` at counted tokens."""
    advantages = np.zeros(batch.mask.shape)
    for i in range(len(batch.rewards)):
        for t in counted(batch, i):
            advantages[i, t] = value(i, t)
    return advantages


def remax(batch: Batch) -> np.ndarray:
    """Return G_{i,t} − R(greedy)."""
    greedy = batch.greedy_rewards
    assert greedy is not None
    return fill(batch, lambda i, t: return_at(batch, i, t) - greedy[i])


def whiten_tokens(batch: Batch, values: np.ndarray) -> np.ndarray:
    """Return the values whitened over all counted tokens of the batch."""
    places = [(i, t) for i in range(len(batch.rewards)) for t in counted(batch, i)]
    white = dict(zip(places, whiten([float(values[place]) for place in places]), strict=True))
    return fill(batch, lambda i, t: white[i, t])


def reinforce_pp(batch: Batch, gamma: float = 1.0) -> np.ndarray:
    """Return G_{i,t}, whitened."""
    return whiten_tokens(batch, fill(batch, lambda i, t: return_at(batch, i, t, gamma)))


def gae(batch: Batch, gamma: float = 1.0, lam: float = 1.0, whiten: bool = False) -> np.ndarray:
    """Return Σ_l (γλ)^l δ_{t+l}."""
    values = batch.values
    assert values is not None

    def advantage(i: int, t: int) -> float:
        ahead = [u for u in counted(batch, i) if u >= t]
        total = 0.0
        for step, u in enumerate(ahead):
            next_value = values[i, ahead[step + 1]] if step + 1 < len(ahead) else 0.0
            total += (gamma * lam) ** step * (reward_at(batch, i, u) + gamma * next_value - values[i, u])
        return total

    advantages = fill(batch, advantage)
    return whiten_tokens(batch, advantages) if whiten else advantages


def vine(batch: Batch, k: int = 9) -> np.ndarray:
    """Return V̂ at the end of the step − V̂ at its start + its rewards."""
    values = batch.values
    assert values is not None

    def advantage(i: int, t: int) -> float:
        tokens = counted(batch, i)
        starts = [u for u in tokens if not math.isnan(values[i, u])]
        start = max(u for u in starts if u <= t)
        later = [u for u in starts if u > t]
        inside = [u for u in tokens if u >= start and (not later or u < later[0])]
        end_value = values[i, later[0]] if later else 0.0
        return end_value - values[i, start] + sum(reward_at(batch, i, u) for u in inside)

    return fill(batch, advantage)


def energy_at(batch: Batch, i: int, t: int, energy: str) -> float:
    """Return ρ²‖s_t‖², or ρ²w_t with w_t = 1 − 2π(y_t) + Σ_v π(v)²."""
    if energy == "exact":
        assert batch.token_energy is not None
        value = float(batch.token_energy[i, t])
    else:
        assert batch.logprobs is not None
        assert batch.sum_pi_squared is not None
        value = 1 - 2 * math.exp(batch.logprobs[i, t]) + float(batch.sum_pi_squared[i, t])
    return value if batch.importance is None else value * float(batch.importance[i, t]) ** 2


def zeroed(batch: Batch, i: int, column: int) -> bool:
    """Return whether the zero-tail rule sets B = 0 for completion i at a column."""
    others = [int(batch.lengths[j]) for j in members(batch, i, loo=True)]
    return bool(others) and int(batch.lengths[i]) > max(others) and column >= max(others)


def otb(batch: Batch, energy: str = "logit", zero_tail: bool = True, loo: bool = False) -> np.ndarray:
    """Return (G_{i,t} − B_t)·m, B_t = Σ G W m/(Σ W m + 1e-8)."""

    def advantage(i: int, t: int) -> float:
        baseline = 0.0
        if len(members(batch, i, loo=False)) > 1 and not (zero_tail and zeroed(batch, i, t)):
            alive = [j for j in members(batch, i, loo) if batch.mask[j, t]]
            weight = {j: sum(energy_at(batch, j, u, energy) for u in counted(batch, j) if u <= t) for j in alive}
            numerator = sum(return_at(batch, j, t) * weight[j] for j in alive)
            baseline = numerator / (sum(weight.values()) + 1e-8)
        return return_at(batch, i, t) - baseline

    return fill(batch, advantage)


def otb_turns(batch: Batch, energy: str = "logit", zero_tail: bool = True, loo: bool = False) -> np.ndarray:
    """Return the same with the q-th counted token of each completion in place of position t."""

    def advantage(i: int, t: int) -> float:
        place = counted(batch, i).index(t)
        baseline = 0.0
        if len(members(batch, i, loo=False)) > 1 and not (zero_tail and zeroed(batch, i, place)):
            numerator = denominator = 0.0
            for j in members(batch, i, loo):
                tokens = counted(batch, j)
                if place < len(tokens):
                    weight = sum(energy_at(batch, j, u, energy) for u in tokens[: place + 1])
                    numerator += return_at(batch, j, tokens[place]) * weight
                    denominator += weight
            baseline = numerator / (denominator + 1e-8)
        return return_at(batch, i, t) - baseline

    return fill(batch, advantage)


def causal_optimal(batch: Batch, loo: bool = False, scope: str = "group") -> np.ndarray:
    """Return G_{i,t} − Σ R⟨s_t, S⟩/Σ‖s_t‖²."""
    energy, cross = batch.token_energy, batch.token_cross
    assert energy is not None
    assert cross is not None

    def advantage(i: int, t: int) -> float:
        alive = [j for j in members(batch, i, loo, scope) if batch.mask[j, t]]
        total = sum(energy[j, t] for j in alive)
        baseline = 0.0
        if len(members(batch, i, loo=False, scope=scope)) > 1 and total != 0:
            baseline = sum(batch.rewards[j] * cross[j, t] for j in alive) / total
        return return_at(batch, i, t) - baseline

    return fill(batch, advantage)


def discounted(batch: Batch, baseline: str = "rloo", gamma: float = 1.0) -> np.ndarray:
    """Return Σ_{u≥t} γ^{u−t} r_u − γ^{T−t} b_i, with b_i the mean reward of the group, without sample i for "rloo"."""

    def advantage(i: int, t: int) -> float:
        tokens = counted(batch, i)
        others = [j for j in members(batch, i, loo=False) if j != i or baseline == "group_mean"]
        alone = len(members(batch, i, loo=False)) == 1
        mean = batch.rewards[i] if alone else sum(batch.rewards[j] for j in others) / len(others)
        total = 0.0
        for place in range(tokens.index(t), len(tokens)):
            last = batch.rewards[i] if tokens[place] == tokens[-1] else 0.0
            reward = last if batch.token_rewards is None else batch.token_rewards[i, tokens[place]]
            total += gamma ** (place - tokens.index(t)) * reward
        return total - gamma ** (len(tokens) - 1 - tokens.index(t)) * mean

    return fill(batch, advantage)


NAIVE_TOKEN_ESTIMATORS: dict[str, Callable[..., np.ndarray]] = {
    "remax": remax,
    "reinforce_pp": reinforce_pp,
    "gae": gae,
    "vine": vine,
    "otb": otb,
    "otb_turns": otb_turns,
    "causal_optimal": causal_optimal,
    "discounted": discounted,
}
