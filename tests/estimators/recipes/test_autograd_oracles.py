"""Each published method's weights against autograd of its objective, written here from the paper, in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from gradstats.analyses.ratios import without_clip
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
    )  # fmt: skip


BATCH = make_batch()
MASK, OLD, REF, VALUES = (
    torch.tensor(values) for values in (BATCH.mask, BATCH.old_logprobs, BATCH.ref_logprobs, BATCH.values)
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


def dapo(logp, rows):
    if REWARDS[rows].min() == REWARDS[rows].max():
        return 0.0 * logp.sum()
    return per_token(ppo_clip(log_ratio(logp, rows).exp(), normalised(REWARDS[rows])[:, None], 0.2, 0.28), rows)


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


@pytest.mark.parametrize(
    ("label", "objective"),
    [
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


#: Label → on which side of 1 its clip reaches ratios where advantages are positive, and where they are negative.
CLIPS = {
    "grpo": ({"above"}, {"below"}),
    "dapo": ({"above"}, {"below"}),
    "gspo": ({"above"}, {"below"}),
    "cispo": ({"above", "below"}, {"above", "below"}),
    "cispo(convention=trl, eps_high=1.3)": ({"above"}, {"above"}),
    "ppo": ({"above"}, {"below"}),
    "ppo(dual_clip=1.3)": ({"above"}, {"above", "below"}),
    "custom(advantage=rloo, ratio=sequence_product(eps_low=0.4, eps_high=0.5))": ({"above"}, {"below"}),
    "custom(advantage=rloo, ratio=sequence_product(truncate=1.2))": ({"above"}, {"above"}),
    "gmpo": ({"above"}, {"below"}),
    "delta_l": ({"above"}, {"below"}),
}


@pytest.mark.parametrize("label", CLIPS)
def test_the_batch_crosses_every_clip_with_both_signs(label):
    """Of either sign some tokens are clipped, on the sides where the clip acts and on no other, and some are not."""
    recipe = recipes.get(label)
    advantages = recipe.advantages(BATCH)
    advantages = advantages if advantages.ndim == 2 else np.where(BATCH.mask, advantages[:, None], 0.0)
    log_ratio = np.where(BATCH.mask, BATCH.logprobs - BATCH.old_logprobs, 0.0)
    if recipe.ratio.definition.level == "sequence":
        log_ratio = np.where(BATCH.mask, log_ratio.sum(axis=1)[:, None], 0.0)
    if recipe.ratio.name == "geometric_clip":  # the mean of a completion changes with any of its tokens
        clipped = BATCH.mask & (recipe.token_weights(BATCH) == 0)
    else:
        clipped = recipe.token_weights(BATCH) != without_clip(recipe).token_weights(BATCH)
    for sign, expected in zip((advantages > 0, advantages < 0), CLIPS[label], strict=True):
        sides = {"above": clipped & sign & (log_ratio > 0), "below": clipped & sign & (log_ratio < 0)}
        assert {side for side, reached in sides.items() if reached.any()} == expected
        assert (BATCH.mask & sign & ~clipped).any()
