"""Each published method's weights against autograd of its objective, written here from the paper, in float64."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from gradstats.estimators import Batch, recipes

GROUPS = np.array([0, 1, 0, 2, 1, 0, 2, 1, 0, 3, 3])
WIDTH = 7


def make_batch() -> Batch:
    """Uneven lengths, holes in the mask, a group of equal rewards, ratios on both sides of every clip."""
    rng = np.random.default_rng(2)
    n = len(GROUPS)
    spans = rng.integers(2, WIDTH + 1, n)
    spans[0] = WIDTH
    mask = np.arange(WIDTH) < spans[:, None]
    mask &= rng.random(mask.shape) < 0.8
    mask[np.arange(n), spans - 1] = True
    old = np.log(rng.uniform(0.05, 0.9, mask.shape))
    drift = rng.normal(0, 0.45, mask.shape)
    drift[::3] = rng.normal(0, 3e-4, drift[::3].shape)  # near enough for GSPO not to clip
    rewards = rng.random(n).round(2)
    rewards[GROUPS == 3] = 0.5
    return Batch(
        rewards, mask.sum(axis=1), GROUPS, mask, logprobs=old + drift, old_logprobs=old,
        ref_logprobs=old + rng.normal(0, 0.5, mask.shape), values=rng.normal(size=mask.shape),
        entropy=rng.exponential(size=mask.shape),
    )  # fmt: skip


BATCH = make_batch()
MASK, OLD, REF, VALUES, ENTROPY = (
    torch.tensor(values) for values in (BATCH.mask, BATCH.old_logprobs, BATCH.ref_logprobs, BATCH.values, BATCH.entropy)
)
REWARDS = torch.tensor(BATCH.rewards)


def over_groups(objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> np.ndarray:
    """d Σ_m J_m / d log π(y_t), with J_m of the rows of each group."""
    logp = torch.tensor(BATCH.logprobs, requires_grad=True)
    total = sum(objective(logp, torch.tensor(np.flatnonzero(group == GROUPS))) for group in np.unique(GROUPS))
    (gradient,) = torch.autograd.grad(total, logp)
    return np.where(BATCH.mask, gradient.numpy(), 0.0)


def normalised(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def ppo_clip(rho, advantage, low=0.2, high=0.2):
    return torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)


def per_sequence(values, rows):
    return (torch.where(MASK[rows], values, 0.0).sum(1) / MASK[rows].sum(1)).mean()


def per_token(values, rows):
    return torch.where(MASK[rows], values, 0.0).sum() / MASK[rows].sum()


def log_ratio(logp, rows):
    return torch.where(MASK[rows], logp[rows] - OLD[rows], 0.0)


def grpo(kind: str | None = None, beta: float = 0.04):
    def objective(logp, rows):
        values = ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows])[:, None])
        gap, rho = logp[rows] - REF[rows], log_ratio(logp, rows).exp()
        k3 = (-gap).exp() - 1 + gap
        kinds = {None: 0.0 * gap, "k1": gap, "k2": gap**2 / 2, "k3": k3, "rho k3": rho.detach() * k3, "TRL": rho * k3}
        penalty = kinds[kind]
        return per_sequence(values - beta * penalty, rows)

    return objective


def grpo_kl_in_reward(kind: str):
    def objective(logp, rows):
        gap = torch.where(MASK[rows], logp[rows] - REF[rows], 0.0).detach()
        penalty = {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap}[kind].sum(1)
        return per_sequence(
            ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows] - 0.05 * penalty)[:, None]), rows
        )

    return objective


def dr_grpo(logp, rows):
    centred = (REWARDS[rows] - REWARDS[rows].mean())[:, None]
    values = ppo_clip(log_ratio(logp, rows).exp(), centred)
    return torch.where(MASK[rows], values, 0.0).sum() / (len(rows) * WIDTH)


def dapo(logp, rows, threshold=0.0):
    """With a threshold equation 6 of 2506.01939, whose denominator counts all tokens."""
    if REWARDS[rows].min() == REWARDS[rows].max():
        return 0.0 * logp.sum()
    values = ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows])[:, None], 0.2, 0.28)
    return per_token(torch.where(ENTROPY[rows] >= threshold, values, 0.0), rows)


def gspo(logp, rows):
    ratio = (log_ratio(logp, rows).sum(1) / MASK[rows].sum(1)).exp()
    return ppo_clip(ratio, normalised(REWARDS[rows]), 3e-4, 4e-4).mean()


def cispo(high: float, low: float = 0.8):
    def objective(logp, rows):
        weight = log_ratio(logp, rows).exp().clamp(low, high).detach()
        return per_token(weight * normalised(REWARDS[rows])[:, None] * logp[rows], rows)

    return objective


def ppo(dual: float | None):
    def objective(logp, rows):
        advantage = REWARDS[rows][:, None] - VALUES[rows]  # GAE with γ = λ = 1
        rho = log_ratio(logp, rows).exp()
        values = ppo_clip(rho, advantage)
        if dual is not None:
            values = torch.where(advantage < 0, torch.maximum(values, dual * advantage), values)
        return per_token(values, rows)

    return objective


def kimi(logp, rows, tau=0.7):
    advantage = REWARDS[rows] - tau * (REWARDS[rows] / tau).exp().mean().log()
    whole = log_ratio(logp, rows).sum(1)
    return (advantage * whole - tau / 2 * whole**2).mean()


def clipped_product(logp, rows):
    others = (REWARDS[rows].sum() - REWARDS[rows]) / (len(rows) - 1)
    return ppo_clip(log_ratio(logp, rows).sum(1).exp(), REWARDS[rows] - others, 0.4, 0.5).mean()


def weighted_product(truncate: float | None, normalize: bool):
    """Importance sampling with a weight through which no gradient flows."""

    def objective(logp, rows):
        others = (REWARDS[rows].sum() - REWARDS[rows]) / (len(rows) - 1)
        weight = log_ratio(logp, rows).sum(1).exp().detach()
        if truncate is not None:
            weight = weight.clamp(max=truncate)
        if normalize:
            weight = weight * len(rows) / weight.sum()
        return (weight * (REWARDS[rows] - others) * torch.where(MASK[rows], logp[rows], 0.0).sum(1)).mean()

    return objective


def gmpo(logp, rows):
    advantage = normalised(REWARDS[rows])
    gap = log_ratio(logp, rows)
    clipped = torch.where(advantage[:, None] > 0, gap.clamp(max=0.4), gap.clamp(min=-0.4))
    return ((clipped.sum(1) / MASK[rows].sum(1)).exp() * advantage).mean()


def delta_l(logp, rows, alpha=0.75):
    values = torch.where(MASK[rows], ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows])[:, None]), 0.0)
    share = MASK[rows].sum(1).double() ** -alpha
    return (values.sum(1) * share / share.sum()).sum()


def by_sign(condition, positive: float, negative: float) -> torch.Tensor:
    return torch.where(condition, *torch.tensor([positive, negative], dtype=torch.float64))


def sapo(logp, rows, tau_pos=1.0, tau_neg=1.05):
    advantage = normalised(REWARDS[rows])[:, None]
    tau = by_sign(advantage > 0, tau_pos, tau_neg)
    return per_sequence(4 / tau * torch.sigmoid(tau * (log_ratio(logp, rows).exp() - 1)) * advantage, rows)


def vespo(logp, rows):
    advantage = normalised(REWARDS[rows])[:, None]
    k, lam = by_sign(advantage >= 0, 2.0, 3.0), by_sign(advantage >= 0, 3.0, 2.0)
    whole = log_ratio(logp, rows).sum(1, keepdim=True).exp().detach()
    return per_token(lam.exp() * whole**k * (-lam * whole).exp() * advantage * logp[rows], rows)


def luspo(logp, rows):
    lengths = MASK[rows].sum(1)
    ratio = (log_ratio(logp, rows).sum(1) / lengths).exp()
    return (ppo_clip(ratio, normalised(REWARDS[rows]), 3e-4, 4e-4) * lengths).mean()


def topr(logp, rows):
    advantage = REWARDS[rows] - REWARDS[rows].mean()
    whole = log_ratio(logp, rows).sum(1).exp().detach()
    weight = torch.where(advantage > 0, 1.0, whole.clamp(max=1.0))
    return (weight * advantage * torch.where(MASK[rows], logp[rows], 0.0).sum(1)).mean()


def fspo(logp, rows, width=0.15):
    advantage, log_whole = normalised(REWARDS[rows]), log_ratio(logp, rows).sum(1)
    band = width * MASK[rows].sum(1).double().sqrt()
    return torch.minimum(log_whole.exp() * advantage, log_whole.clamp(-band, band).exp() * advantage).mean()


def dppo(kind: str, cap: float | None, threshold: float):
    """A token whose probability has left the region in the direction of its advantage has no gradient."""

    def objective(logp, rows):
        advantage = normalised(REWARDS[rows])[:, None]
        p, old = logp[rows].detach().exp().clamp(max=1.0), OLD[rows].exp()  # some of the batch are above 1
        distance = (p - old).abs()
        if kind == "kl":
            distance = old * (old / p).log() + (1 - old) * ((1 - old) / (1 - p)).log()
        outside = (distance > threshold) & torch.where(advantage > 0, p > old, p < old)
        ratio = log_ratio(logp, rows).exp().detach().clamp(max=np.inf if cap is None else cap)
        return per_token(torch.where(outside, 0.0, ratio * advantage * logp[rows]), rows)

    return objective


def dro(logp, rows, beta=0.1):
    centred = (REWARDS[rows] - REWARDS[rows].mean())[:, None]
    return per_token(logp[rows] * centred - beta / 2 * log_ratio(logp, rows) ** 2, rows)


def off_policy_mask(logp, rows, delta=0.1):
    advantage, gap = normalised(REWARDS[rows])[:, None], log_ratio(logp, rows)
    drift = (-gap.detach()).sum(1, keepdim=True) / MASK[rows].sum(1, keepdim=True)
    return per_sequence(torch.where((advantage < 0) & (drift > delta), 0.0, ppo_clip(gap.exp(), advantage)), rows)


def relative_length(logp, rows, alpha=0.5):
    lengths = MASK[rows].sum(1).double()
    rewards = REWARDS[rows] / (1 + alpha * lengths / lengths.mean())
    return per_sequence(ppo_clip(log_ratio(logp, rows).exp(), normalised(rewards)[:, None]), rows)


def linear_length(logp, rows, beta=0.3, most=5):
    rewards = REWARDS[rows] - beta * MASK[rows].sum(1).double() / most
    return per_sequence(ppo_clip(log_ratio(logp, rows).exp(), normalised(rewards)[:, None]), rows)


@pytest.mark.parametrize(
    ("label", "objective"),
    [
        ("sapo", sapo),
        ("sapo(tau_pos=2, tau_neg=3)", lambda logp, rows: sapo(logp, rows, 2.0, 3.0)),
        ("vespo", vespo),
        ("luspo", luspo),
        ("topr", topr),
        ("fspo(width=0.15)", fspo),
        ("dppo_tv", dppo("tv", None, 0.2)),
        ("dppo_tv(cap=1.1)", dppo("tv", 1.1, 0.2)),
        ("dppo_kl(eps_low=0.03, eps_high=0.03)", dppo("kl", None, 0.03)),
        ("dro", dro),
        ("off_policy_mask", off_policy_mask),
        ("grpo(reward=relative_length(beta=0.5))", relative_length),
        ("grpo(reward=linear_length(beta=0.3, max=5))", linear_length),
        (
            "prompt_mean",
            lambda logp, rows: per_token(
                ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows])[:, None]), rows
            ),
        ),
        ("grpo", grpo()),
        ("grpo(kl=in_loss(beta=0.04, kind=k1))", grpo("k1")),
        ("grpo(kl=in_loss(beta=0.04, kind=k2))", grpo("TRL")),
        ("grpo(kl=in_loss(beta=0.04, kind=k2, by_ratio=False))", grpo("k2")),
        ("grpo(kl=in_loss(beta=0.04, kind=k3, by_ratio=True))", grpo("rho k3")),
        ("grpo(kl=in_loss(beta=0.04, kind=k3))", grpo("k3")),
        ("grpo(kl=in_reward(beta=0.05))", grpo_kl_in_reward("k1")),
        ("grpo(kl=in_reward(beta=0.05, kind=k2))", grpo_kl_in_reward("k2")),
        ("grpo(kl=in_reward(beta=0.05, kind=k3))", grpo_kl_in_reward("k3")),
        ("dr_grpo", dr_grpo),
        ("dapo", dapo),
        ("dapo_top_entropy(threshold=0.9)", lambda logp, rows: dapo(logp, rows, 0.9)),
        ("dapo_top_entropy", lambda logp, rows: dapo(logp, rows, float(np.quantile(BATCH.entropy[BATCH.mask], 0.8)))),
        ("gspo", gspo),
        ("cispo", cispo(high=1.2)),
        ("cispo(convention=trl, eps_high=1.3)", cispo(high=1.3, low=0.0)),
        ("ppo", ppo(None)),
        ("ppo(dual_clip=1.3)", ppo(1.3)),
        ("kimi_k15(tau=0.7)", kimi),
        ("custom(advantage=rloo, ratio=sequence_product(eps_low=0.4, eps_high=0.5))", clipped_product),
        ("custom(advantage=rloo, ratio=sequence_product)", weighted_product(None, False)),
        ("custom(advantage=rloo, ratio=sequence_product(truncate=1.2))", weighted_product(1.2, False)),
        ("custom(advantage=rloo, ratio=sequence_product(normalize=True))", weighted_product(None, True)),
        ("custom(advantage=rloo, ratio=sequence_product(truncate=1.2, normalize=True))", weighted_product(1.2, True)),
        ("gmpo", gmpo),
        ("delta_l(alpha=0.75)", delta_l),
    ],
)
def test_weights_are_the_gradient_of_the_published_objective(label, objective):
    recipe = recipes.get(label)
    assert_allclose(recipe.token_weights(BATCH), over_groups(objective), rtol=1e-10, atol=1e-12)


def over_batch(objective: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """M·d J / d log π(y_t), with J of the whole batch of M groups."""
    logp = torch.tensor(BATCH.logprobs, requires_grad=True)
    (gradient,) = torch.autograd.grad(BATCH.n_groups * objective(logp), logp)
    return np.where(BATCH.mask, gradient.numpy(), 0.0)


ROWS = torch.arange(len(GROUPS))
MEMBERS = [torch.tensor(np.flatnonzero(group == GROUPS)) for group in np.unique(GROUPS)]
CENTRED, STANDARDISED = torch.zeros(len(GROUPS), 1).double(), torch.zeros(len(GROUPS), 1).double()
for members in MEMBERS:
    CENTRED[members, 0] = REWARDS[members] - REWARDS[members].mean()
    STANDARDISED[members, 0] = normalised(REWARDS[members])


def clipped(logp):
    return ppo_clip(log_ratio(logp, ROWS).exp(), STANDARDISED)


def prime_rl(logp):
    gap = log_ratio(logp, ROWS)
    moved = logp.detach().exp().clamp(max=1.0) - OLD.exp()
    outside = torch.where(CENTRED > 0, moved > 0.2, moved < -0.2)
    return per_token(torch.where(outside, 0.0, gap.exp() * CENTRED) - 1e-3 * gap**2, ROWS)


def micro_batches(logp, size=4):
    """TRL's bnpo: the mean over micro-batches of the means over their tokens."""
    parts = [ROWS[start : start + size] for start in range(0, len(ROWS), size)]
    return sum(per_token(clipped(logp)[rows], rows) for rows in parts) / len(parts)


def gpg(of: str):
    """The paper's α counts completions of groups with a gradient, verl's all but those whose reward is 0."""
    differ = [len(set(BATCH.rewards[group == GROUPS])) > 1 for group in GROUPS]
    alpha = len(GROUPS) / sum(differ if of == "groups" else (reward != 0 for reward in BATCH.rewards))
    assert alpha > 1 or of == "rewards"
    return lambda logp: alpha * sum(per_token(CENTRED[rows] * logp[rows], rows) for rows in MEMBERS) / len(MEMBERS)


def m2po(signs: bool, threshold: float = 0.04):
    """Drop the token of the greatest squared log-ratio, one after the other, until the mean is small enough."""

    def objective(logp):
        gap = log_ratio(logp, ROWS)
        squares = {
            (i, t): float(gap[i, t].detach()) ** 2
            for i, t in zip(*np.nonzero(BATCH.mask), strict=True)
            if not signs or STANDARDISED[i, 0] * gap[i, t] > 0
        }
        kept = torch.ones(gap.shape).double()
        while squares and sum(squares.values()) / len(squares) > threshold:
            worst = max(squares, key=squares.get)
            kept[worst] = 0.0
            del squares[worst]
        return per_token(kept * gap.exp() * STANDARDISED, ROWS)

    return objective


def covariances() -> dict[tuple[int, int], float]:
    places = list(zip(*map(list, np.nonzero(BATCH.mask)), strict=True))
    advantages = {place: float(STANDARDISED[place[0], 0]) for place in places}
    mean, mean_logp = np.mean(list(advantages.values())), np.mean([BATCH.logprobs[place] for place in places])
    return {place: (advantages[place] - mean) * (BATCH.logprobs[place] - mean_logp) for place in places}


def kl_cov(logp, share=0.2, beta=0.7):
    found = covariances()
    penalised = torch.zeros(logp.shape).double()
    for place in sorted(found, key=found.get, reverse=True)[: int(share * len(found))]:
        penalised[place] = 1.0
    gap = log_ratio(logp, ROWS)
    return per_token(gap.exp() * STANDARDISED - beta * penalised * gap.abs(), ROWS)


def clip_cov(logp, low=0.1, high=0.9, share=0.07):
    """The mean over all choices of k tokens within bounds, each of which loses its gradient."""
    gap = log_ratio(logp, ROWS).detach().exp()
    ppo_clips = torch.where(STANDARDISED > 0, gap > 1.2, (gap < 0.8) & (STANDARDISED < 0))
    found = covariances()
    within = [place for place, value in found.items() if low < value < high and not ppo_clips[place]]
    choices = list(itertools.combinations(within, int(share * len(found))))
    kept = torch.ones(logp.shape, dtype=torch.float64)
    for choice in choices:
        for place in choice:
            kept[place] -= 1 / len(choices)
    assert len(choices) > 1
    return per_token(kept * clipped(logp), ROWS)


@pytest.mark.parametrize(
    ("label", "objective"),
    [
        ("prime_rl", prime_rl),
        ("skyrl", lambda logp: per_token(clipped(logp), ROWS)),
        ("bnpo(completions=4)", micro_batches),
        ("bnpo(completions=1)", lambda logp: per_sequence(clipped(logp), ROWS)),
        ("gpg", gpg("groups")),
        ("gpg(of=rewards)", gpg("rewards")),
        ("m2po", m2po(True)),
        ("m2po(signs=False, threshold=0.02)", m2po(False, 0.02)),
        ("kl_cov(share=0.2, beta=0.7)", kl_cov),
        ("clip_cov(low=0.1, high=0.9, share=0.07)", clip_cov),
    ],
)
def test_weights_are_the_gradient_of_the_objective_of_the_whole_batch(label, objective):
    of_batch = {"scope": "batch"} if label.startswith(("m2po", "kl_cov", "clip_cov")) else {}
    recipe = recipes.get(label, **of_batch)
    assert recipe.across_groups
    assert_allclose(recipe.token_weights(BATCH), over_batch(objective), rtol=1e-10, atol=1e-12)
