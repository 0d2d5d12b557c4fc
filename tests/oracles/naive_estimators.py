"""Every estimator by plain loops over completions and tokens, and every gradient by a backward pass of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from gradstats.estimators import Batch
from gradstats.rollouts.table import Rollouts


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


def for_each(
    batch: Batch, advantage: Callable[[int, float], float], singleton: str, scope: str = "group"
) -> np.ndarray:
    """Return ``advantage(i, R_i)`` of every completion, or what ``singleton`` says where it is alone in its set."""
    return np.array(
        [
            lone_advantage(reward, singleton) if alone(batch, i, scope) else advantage(i, reward)
            for i, reward in enumerate(batch.rewards)
        ]
    )


def weighted(batch: Batch, weight: Callable[[int], float], loo: bool, scope: str, singleton: str) -> np.ndarray:
    """Return R_i − Σ_j w_j R_j / Σ_j w_j."""

    def advantage(i: int, reward: float) -> float:
        others = members(batch, i, loo, scope)
        return reward - sum(weight(j) * batch.rewards[j] for j in others) / sum(weight(j) for j in others)

    return for_each(batch, advantage, singleton, scope)


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

    def advantage(i: int, reward: float) -> float:
        ranked = sorted(members(batch, i, loo=False), key=lambda j: -batch.rewards[j])
        lead = reward - batch.rewards[ranked[1]] if i == ranked[0] else 0.0
        return lead / (group_deviation(batch, i, ddof) + eps) if normalize else lead

    return for_each(batch, advantage, singleton)


def kimi(batch: Batch, tau: float, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − τ·log mean_j exp(R_j/τ)."""

    def advantage(i: int, reward: float) -> float:
        exponents = [batch.rewards[j] / tau for j in members(batch, i, loo)]
        top = max(exponents)  # τ·log mean exp, safe from overflow
        mean = sum(math.exp(e - top) for e in exponents) / len(exponents)
        return reward - tau * (top + math.log(mean))

    return for_each(batch, advantage, singleton)


def max_rl(batch: Batch, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return (R_i − R̄)/R̄, 0 for a group of zeros."""
    plain = group_mean(batch, loo, singleton)

    def advantage(i: int, reward: float) -> float:
        rewards = [batch.rewards[j] for j in members(batch, i, loo=False)]
        return 0.0 if all(one == 0 for one in rewards) else plain[i] / (sum(rewards) / len(rewards))

    return for_each(batch, advantage, singleton)


def james_stein(
    batch: Batch, loo: bool = True, shrink_factor: bool = True, eps: float = 0.0, singleton: str = "zero"
) -> np.ndarray:
    """Return R_i − [(1−λ)(mean of the others) + λ(mean of the other groups)]."""
    groups = sorted(set(batch.groups.tolist()))
    rewards = {g: [r for r, label in zip(batch.rewards, batch.groups, strict=True) if label == g] for g in groups}
    mean = {g: sum(rewards[g]) / len(rewards[g]) for g in groups}
    n = len(groups)

    def advantage(i: int, reward: float) -> float:
        same = members(batch, i, loo)
        same_mean = sum(batch.rewards[j] for j in same) / len(same)
        others = [g for g in groups if g != batch.groups[i]]
        if not others:
            return reward - same_mean
        others_mean = sum(mean[g] for g in others) / len(others)
        noise = [
            sum((r - mean[g]) ** 2 for r in rewards[g]) / (len(rewards[g]) * (len(rewards[g]) - 1))
            for g in others
            if len(rewards[g]) > 1
        ]
        v = sum(noise) / len(noise) if noise else 0.0
        s = sum((mean[g] - others_mean) ** 2 for g in others) / len(others)
        shrinkage = v / (v + s + eps) if v + s > 0 else 0.0
        if shrink_factor:
            shrinkage *= (n - 1) / n
        return reward - ((1 - shrinkage) * same_mean + shrinkage * others_mean)

    return for_each(batch, advantage, singleton)


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


def quantile(batch: Batch, q: float = 0.5, loo: bool = False, singleton: str = "zero") -> np.ndarray:
    """Return R_i − the value at the place q·(n − 1) of the sorted rewards, between two of them linearly."""

    def advantage(i: int, reward: float) -> float:
        ordered = sorted(float(batch.rewards[j]) for j in members(batch, i, loo))
        place = q * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return reward - (ordered[below] + (place - below) * (ordered[above] - ordered[below]))

    return for_each(batch, advantage, singleton)


def ebpo(batch: Batch, normalize: bool = True, eps: float = 1e-6) -> np.ndarray:
    """Return R_i − [(1 − S)·(group mean) + S·(batch mean)], whitened over the batch."""
    rewards = {g: [float(r) for r, h in zip(batch.rewards, batch.groups, strict=True) if h == g] for g in batch.groups}
    mean = {g: sum(rewards[g]) / len(rewards[g]) for g in rewards}
    within = sum(sum((r - mean[g]) ** 2 for r in rewards[g]) / len(rewards[g]) for g in rewards) / len(rewards)
    centre = sum(mean.values()) / len(mean)
    between = sum((m - centre) ** 2 for m in mean.values()) / len(mean)
    overall = sum(map(float, batch.rewards)) / len(batch.rewards)
    found = []
    for reward, g in zip(batch.rewards, batch.groups, strict=True):
        noise = within / len(rewards[g])
        shrinkage = noise / (noise + between) if noise + between > 0 else 0.0
        found.append(float(reward) - (1 - shrinkage) * mean[g] - shrinkage * overall)
    if not normalize:
        return np.array(found)
    average = sum(found) / len(found)
    spread = math.sqrt(sum((a - average) ** 2 for a in found) / len(found))
    return np.array([(a - average) / (spread + eps) for a in found])


def gdpo(batch: Batch, columns: str, convention: str = "trl", singleton: str = "zero") -> np.ndarray:
    """Return Σ_k w_k·(GRPO's advantage of reward k), whitened over completions (TRL) or tokens (verl)."""
    eps = {"trl": 1e-4, "verl": 1e-6}[convention]
    totals = [0.0] * len(batch.rewards)
    for part in columns.split(","):
        name, weight = part.split("=")
        of_one = batch.with_fields(rewards=batch.columns[name.strip()])
        for i, value in enumerate(grpo(of_one, eps=eps, singleton=singleton)):
            totals[i] += float(weight) * value
    if convention == "verl":
        tokens = [value for value, length in zip(totals, batch.lengths, strict=True) for _ in range(int(length))]
        white = dict(zip(tokens, whiten(tokens), strict=True))
        return np.array([white[value] for value in totals])
    average = sum(totals) / len(totals)
    spread = math.sqrt(sum((value - average) ** 2 for value in totals) / (len(totals) - 1))
    return np.array([(value - average) / (spread + eps) for value in totals])


def past(batch: Batch, i: int) -> list[float]:
    """Return the earlier rewards of completion i's prompt."""
    return [float(reward) for reward in batch.columns["history"][i]]


def reward_ema(batch: Batch, decay: float = 0.95, start: float = 0.0, loo: bool = False) -> np.ndarray:
    """Return R_i − b with b ← decay·b + (1 − decay)·r, the sample's own reward last."""
    found = []
    for i, reward in enumerate(batch.rewards):
        b = start
        for r in [*past(batch, i), *([] if loo else [float(reward)])]:
            b = decay * b + (1 - decay) * r
        found.append(float(reward) - b)
    return np.array(found)


def beta_tracker(batch: Batch, decay: float = 0.9, start: float = 0.5, count: float = 8.0) -> np.ndarray:
    """Return R_i − α/(α + β) with α ← decay·α + r and β ← decay·β + 1 − r."""
    found = []
    for i, reward in enumerate(batch.rewards):
        alpha, beta = start * count, (1 - start) * count
        for r in past(batch, i):
            alpha, beta = decay * alpha + r, decay * beta + 1 - r
        found.append(float(reward) - alpha / (alpha + beta))
    return np.array(found)


def kalman(
    batch: Batch, process: float = 1e-5, noise: float = 1e-2, start: float = 0.0, variance: float = 1.0,
    eps: float = 1e-8, loo: bool = False,
) -> np.ndarray:  # fmt: skip
    """Return (R_i − x)/(√P + eps) with x and P of a Kalman filter, for each completion from the beginning."""
    found = []
    for i, reward in enumerate(batch.rewards):
        earlier = [float(batch.rewards[j]) for j in members(batch, i, loo=False) if j <= i]
        x, p, before = start, variance, start
        for r in [*past(batch, i), *earlier]:
            predicted = p + process
            before, x = x, x + predicted / (predicted + noise) * (r - x)
            p = predicted * noise / (predicted + noise)
        found.append((float(reward) - (before if loo else x)) / (math.sqrt(p) + eps))
    return np.array(found)


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
    "quantile": quantile,
    "ebpo": ebpo,
    "gdpo": gdpo,
    "reward_ema": reward_ema,
    "beta_tracker": beta_tracker,
    "kalman": kalman,
}


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
        if not alone(batch, i) and not (zero_tail and zeroed(batch, i, t)):
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
        if not alone(batch, i) and not (zero_tail and zeroed(batch, i, place)):
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
        if not alone(batch, i, scope) and total != 0:
            baseline = sum(batch.rewards[j] * cross[j, t] for j in alive) / total
        return return_at(batch, i, t) - baseline

    return fill(batch, advantage)


def discounted(batch: Batch, baseline: str = "rloo", gamma: float = 1.0) -> np.ndarray:
    """Return Σ_{u≥t} γ^{u−t} r_u − γ^{T−t} b_i, with b_i the mean reward of the group, without sample i for "rloo"."""

    def advantage(i: int, t: int) -> float:
        tokens = counted(batch, i)
        others = members(batch, i, loo=baseline == "rloo" and not alone(batch, i))
        mean = sum(batch.rewards[j] for j in others) / len(others)
        return return_at(batch, i, t, gamma) - gamma ** (len(tokens) - 1 - tokens.index(t)) * mean

    return fill(batch, advantage)


def arca(batch: Batch) -> np.ndarray:
    """Return (R_i − mean of the group)·r_t/mean of the completion's residuals r; 1 where all are 0."""
    residual = batch.columns["adapter_residual"]

    def advantage(i: int, t: int) -> float:
        mean = sum(residual[i, u] for u in counted(batch, i)) / len(counted(batch, i))
        return group_mean(batch)[i] * (residual[i, t] / mean if mean else 1.0)

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
    "arca": arca,
}


def aggregation_factor(batch: Batch, i: int, name: str, max_tokens: float | None = None) -> float:
    """Return the factor of each token of completion i within its group's gradient."""
    group = members(batch, i, loo=False)
    if name == "sequence_sum":
        return 1 / len(group)
    if name == "sequence_mean":
        return 1 / len(group) / int(batch.lengths[i])
    if name == "token_mean":
        return 1 / sum(int(batch.lengths[j]) for j in group)
    return 1 / (len(group) * (batch.mask.shape[1] if max_tokens is None else max_tokens))


def differing_groups(batch: Batch) -> np.ndarray:
    """Return which groups, in sorted order of their labels, hold two different rewards."""
    kept = []
    for group in sorted(set(batch.groups.tolist())):
        rewards = {float(r) for r, label in zip(batch.rewards, batch.groups, strict=True) if label == group}
        kept.append(len(rewards) > 1)
    return np.array(kept)


def sequence_gradients(
    model: torch.nn.Module, rollouts: Rollouts, temperature: float = 1.0
) -> list[dict[str, torch.Tensor]]:
    r"""Return gradients :math:`S_i = \nabla \sum_t m_t \log\mathrm{softmax}(z_t/\tau)_{y_t}` by one backward pass each.

    The mask m_t is the ``completion_mask`` of the rollouts, 1 without it.
    """
    device = next(model.parameters()).device
    results = []
    for prompt, completion, mask in zip(
        rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), rollouts.masks, strict=True
    ):
        ids = torch.tensor([*prompt.tolist(), *completion.tolist()], device=device)
        logits = model(ids[None], use_cache=False).logits[0]
        total = logits.new_zeros(())
        for offset, counts in enumerate(mask):
            if counts:
                position = len(prompt) + offset
                total = total + torch.log_softmax(logits[position - 1] / temperature, dim=-1)[ids[position]]
        model.zero_grad(set_to_none=True)
        total.backward()
        results.append(
            {
                name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                for name, parameter in model.named_parameters()
            }
        )
        model.zero_grad(set_to_none=True)
    return results
