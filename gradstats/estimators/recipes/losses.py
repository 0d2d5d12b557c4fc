r"""Losses of 2025 and 2026 as components, and :data:`LOSSES`, the recipes that use them.

A loss is one component, the weight :math:`w_{i,t}` of the token score in the gradient of its surrogate, and one row.
Without a row are PIPO (2604.00860), which weights the completions of the step before by how much the mean reward has
risen since, so that its gradient depends on two policies, OCC (Oracle-Credit-Compute, a report of 2026), which rewards
agents with compute and weights nothing, and entropy bonuses (the component ``entropy_bonus``).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import one_of
from gradstats.estimators.ratios import exponential, log_mismatch, log_staleness
from gradstats.estimators.recipes.components import component, differing_groups
from gradstats.estimators.recipes.ratio import at_level, mask_tokens, token_clip, truncate_tokens


@component("ratio", "token_ratio", skip=3, level="token", signed=False)
def token_ratio(
    advantages: Float[np.ndarray, "n t"], log_ratio: Float[np.ndarray, "n t"], batch: Batch
) -> Float[np.ndarray, "n t"]:
    r"""Return w = ρ_t·A: importance sampling of tokens, neither clipped nor truncated."""
    return exponential(log_ratio) * advantages


@component("ratio", "soft_gate", skip=3, level="token")
def soft_gate(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    level: str = "token",
) -> Float[np.ndarray, "n t"]:
    r"""SAPO, 2511.20347: :math:`w = 4σ(1-σ)ρA` with :math:`σ = σ(τ(ρ-1))`, the gradient of :math:`\frac4τ σ(τ(ρ-1))A`.

    A soft clip: 1 at ρ = 1, and less on both sides.

    Args:
        tau_pos: τ where A > 0.
        tau_neg: τ where A ≤ 0.
        level: as for ``clipped_weight``.
    """
    ratio = exponential(at_level(log_ratio, batch, level))
    gate = 1 / (1 + np.exp(-np.where(advantages > 0, tau_pos, tau_neg) * (ratio - 1)))
    return 4 * gate * (1 - gate) * ratio * advantages


@component("ratio", "gamma_weight", skip=3)
def gamma_weight(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
    mismatch: str = "whole",
    cap: float = 3.0,
    low: float | None = None,
) -> Float[np.ndarray, "n t"]:
    r"""VESPO, 2602.10693: :math:`w = φ(ρ_i)A`, :math:`φ(ρ) = ρ^k e^{λ(1-ρ)}`, of the whole completion's ratio.

    No gradient flows through φ, which is 1 at 1 and greatest at k/λ.

    Args:
        k_pos: k where A ≥ 0.
        lambda_pos: λ where A ≥ 0.
        k_neg: k where A < 0.
        lambda_neg: λ where A < 0.
        mismatch: what each token's π_prox/π_old is before the product: as it is ("whole"), or with TRL's
            ``token_truncate`` and ``token_mask`` truncated to the bounds ("truncate"), or 1e-8 outside them ("mask").
        cap: the greatest mismatch of a token.
        low: the least; none by default.
    """
    least, greatest = np.log(1e-8), 20.0  # TRL's bounds
    if mismatch != "whole":
        correct = truncate_tokens(cap=cap, low=low) if mismatch == "truncate" else mask_tokens(low=low, high=cap)
        drift = np.clip(log_staleness(batch), -greatest, greatest)
        corrected = correct(log_mismatch(batch), batch)
        log_ratio = drift + np.clip(np.log(np.maximum(corrected, 1e-300)), least, greatest)
    log_sequence = np.clip(log_ratio.sum(axis=1, keepdims=True), least, greatest)
    k = np.where(advantages >= 0, k_pos, k_neg)
    lam = np.where(advantages >= 0, lambda_pos, lambda_neg)
    return np.exp(k * log_sequence + lam * (1 - np.exp(log_sequence))) * advantages


@component("ratio", "tapered", skip=3)
def tapered(
    advantages: Float[np.ndarray, "n t"], log_ratio: Float[np.ndarray, "n t"], batch: Batch, cap: float = 1.0
) -> Float[np.ndarray, "n t"]:
    r"""TOPR, 2503.14286: w = A where A > 0, else :math:`\min(ρ_i, c)A` with the whole completion's ratio.

    Completions to imitate count whatever their probability now; those to avoid only while the policy still draws them.
    The paper's A is the reward itself; Trinity-RFT's ``topr`` has the same, with ratios of tokens.

    Args:
        cap: c.
    """
    log_sequence = np.minimum(log_ratio.sum(axis=1, keepdims=True), np.log(cap))
    return np.where(advantages > 0, 1.0, np.exp(log_sequence)) * advantages


@component("ratio", "root_length_clip", skip=3)
def root_length_clip(
    advantages: Float[np.ndarray, "n t"], log_ratio: Float[np.ndarray, "n t"], batch: Batch, width: float
) -> Float[np.ndarray, "n t"]:
    r"""FSPO, 2509.09177: :math:`w = ρ_iA`, and 0 where :math:`\pm\log ρ_i > c\sqrt{T_i}` in the direction of A.

    log ρ_i of the whole completion spreads as √T, so that the share that is clipped does not depend on the length.
    The paper's first version shifts the band by a drift, which the third, as here, leaves out.

    Args:
        width: c.
    """
    log_sequence = log_ratio.sum(axis=1, keepdims=True)
    clipped = np.sign(advantages) * log_sequence > width * np.sqrt(batch.lengths)[:, None]
    # A clipped ratio is not computed: it may overflow.
    return np.where(clipped, 0.0, exponential(np.where(clipped, 0.0, log_sequence)) * advantages)


@component("ratio", "divergence_clip", skip=3, level="token", rules={"kind": one_of("tv", "kl")})
def divergence_clip(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    kind: str = "tv",
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    cap: float | None = None,
) -> Float[np.ndarray, "n t"]:
    r"""DPPO, 2602.04879: w = min(ρ, C)·A, and 0 where the policy has moved too far in the direction of A.

    The distance is that of the drawn token's probabilities p alone: :math:`|p - p_{old}|` for "tv", and for "kl"
    :math:`p_{old}\log\frac{p_{old}}{p} + (1-p_{old})\log\frac{1-p_{old}}{1-p}`.

    Args:
        kind: "tv" (verl's ``dppo_tv``, and prime-rl) or "kl" (verl's ``dppo_kl``).
        eps_low: the greatest distance that is kept where A ≤ 0 and the probability has fallen.
        eps_high: the greatest distance that is kept where A > 0 and the probability has risen.
        cap: C; none in prime-rl, ``clip_ratio_c`` in verl, 3 by default, where 20 is recommended.
    """
    ratio = exponential(log_ratio)
    weight = (ratio if cap is None else np.minimum(ratio, cap)) * advantages
    if batch.logprobs is None:
        return weight
    p, old = (np.minimum(np.exp(values), 1.0) for values in (batch.logprobs, batch.logprobs - log_ratio))
    distance = np.abs(p - old)
    if kind == "kl":
        rest = np.log((1 - old + 1e-8) / (1 - p + 1e-8))  # finite for a certain token, as in verl
        distance = (1 - old) * rest - old * log_ratio
    positive = advantages > 0
    moved = np.where(positive, p > old, p < old)
    return np.where(moved & (distance > np.where(positive, eps_high, eps_low)), 0.0, weight)


@component(
    "ratio",
    "second_moment_clip",
    skip=3,
    level="token",
    proportional=False,
    across_groups=lambda parameters: True,
)
def second_moment_clip(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    threshold: float = 0.04,
    signs: bool = True,
) -> Float[np.ndarray, "n t"]:
    r"""M2PO, 2510.01161: w = ρA without the tokens of greatest :math:`\log^2ρ`, until the rest's mean is at most τ.

    Batch-level: a token's weight depends on which others are stale.

    Args:
        threshold: τ.
        signs: count and drop only the tokens that PPO would clip, A > 0 with ρ > 1 and A < 0 with ρ < 1, which is
            assumed of the paper; ``False`` takes all, as AReaL's code does, which also keeps PPO's clip.
    """
    counted = batch.mask & ((advantages * log_ratio > 0) | (not signs))
    squares = np.sort(log_ratio[counted] ** 2)
    means = np.cumsum(squares) / np.arange(1, squares.size + 1)
    n_kept = int(np.count_nonzero(means <= threshold))  # means of sorted values do not fall
    least = squares[n_kept] if n_kept < squares.size else np.inf
    return np.where(counted & (log_ratio**2 >= least), 0.0, exponential(log_ratio) * advantages)


def _covariances(advantages: Float[np.ndarray, "n t"], batch: Batch) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`(A_t - \bar A)(\log π_t - \overline{\log π})` with means over all tokens of the batch."""
    assert batch.logprobs is not None
    centred = [values - values[batch.mask].mean() for values in (advantages, batch.logprobs)]
    return np.where(batch.mask, centred[0] * centred[1], -np.inf)


@component(
    "ratio",
    "clip_cov",
    skip=3,
    level="token",
    needs=("logprobs",),
    proportional=False,
    on_policy=True,
    across_groups=lambda parameters: True,
)
def clip_cov(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    share: float = 0.0002,
    low: float = 1.0,
    high: float = 5.0,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> Float[np.ndarray, "n t"]:
    r"""Clip-Cov, 2505.22617: PPO's weight, with k tokens set to 0 among those whose covariance is within bounds.

    The covariance of a token is :math:`(A_t - \bar A)(\log π_t - \overline{\log π})`, k the share of all tokens, at
    least 1. Trainers draw the k at random; here the n tokens within bounds have the expected weight, times
    :math:`1 - k/n`, which leaves out the noise of the draw. Batch-level, and on-policy as well.

    Args:
        share: the share of tokens that is clipped.
        low: the least covariance.
        high: the greatest.
        eps_low: as for ``token_clip``.
        eps_high: as for ``token_clip``.
    """
    weights = token_clip(eps_low=eps_low, eps_high=eps_high)(advantages, log_ratio, batch)
    covariances = _covariances(advantages, batch)
    within = (covariances > low) & (covariances < high) & ((weights != 0) | (advantages == 0))
    k = max(int(share * batch.mask.sum()), 1)
    return np.where(within, weights * max(1 - k / max(within.sum(), 1), 0.0), weights)


@component(
    "ratio",
    "kl_cov",
    skip=3,
    level="token",
    needs=("logprobs",),
    proportional=False,
    across_groups=lambda parameters: True,
)
def kl_cov(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    share: float = 0.0002,
    beta: float = 1.0,
) -> Float[np.ndarray, "n t"]:
    r"""KL-Cov, 2505.22617: :math:`w = ρA - β\,\mathrm{sign}(\log ρ)` for the share of tokens of greatest covariance.

    The rest have ρA, unclipped. The covariance is that of ``clip_cov``; the penalty β|log ρ| is 0 on-policy.

    Args:
        share: the share of tokens, at least one token (0.0002 in verl, 0.2 in SkyRL).
        beta: β (1 in the paper and SkyRL, 0.1 in verl's configuration).
    """
    covariances = _covariances(advantages, batch)
    k = max(int(share * batch.mask.sum()), 1)
    chosen = np.zeros(batch.mask.size, dtype=bool)
    chosen[np.argsort(-covariances, axis=None, kind="stable")[:k]] = True
    penalty = beta * np.where(chosen.reshape(batch.mask.shape), np.sign(log_ratio), 0.0)
    return exponential(log_ratio) * advantages - penalty


@component(
    "scale",
    "nonzero_share",
    skip=2,
    across_groups=lambda parameters: True,
    unit=lambda parameters: f"nonzero_share(of={parameters['of']})",
)
def nonzero_share(advantages: Float[np.ndarray, "..."], batch: Batch, of: str = "groups") -> Float[np.ndarray, "..."]:
    r"""GPG, 2504.02546: return αA, with α the completions of the batch over those with a gradient.

    Batch-level: a group without spread makes the gradients of all others larger, as if it were replaced.

    Args:
        of: "groups" counts the completions of groups whose rewards differ, as the paper; "rewards" those whose reward
            is not 0, as verl.
    """
    counted = differing_groups(batch)[batch.group_index] if of == "groups" else batch.rewards != 0
    return advantages * (batch.rewards.size / max(int(counted.sum()), 1))


@component("reward", "linear_length")
def linear_length(batch: Batch, beta: float, max: float) -> Float[np.ndarray, "n"]:
    r"""Return −β·T/L: a linear price of length.

    Like every term of the reward it changes the objective, while a comparison judges against the measured rewards.

    Args:
        beta: β, the price of L tokens.
        max: L.
    """
    return -beta * batch.lengths / max


@component("reward", "relative_length")
def relative_length(batch: Batch, beta: float) -> Float[np.ndarray, "n"]:
    r"""GR³, 2603.10535: the reward becomes :math:`R_i/(1 + α T_i/\bar T)`, with the mean length of the group.

    prime-rl's ``length_shaping="gr3"`` is the same; the paper's calibration of α by advantages is left out. Returned is
    the difference to R. A reward of 0 is left alone, unlike under an additive price.

    Args:
        beta: α, 0.33 in prime-rl.
    """
    mean = np.bincount(batch.group_index, weights=batch.lengths) / batch.group_sizes
    return batch.rewards / (1 + beta * batch.lengths / np.maximum(mean, 1e-12)[batch.group_index]) - batch.rewards


_GROUP = {"advantage": "group_mean", "scale": "group_std", "published_kl": "none"}
_BY_TOKENS = {"aggregation": "token_mean", "bias": "biased: by group spread and 1/ΣT"}
_BY_LENGTH = {"aggregation": "sequence_mean", "bias": "biased: by group spread and 1/T"}

LOSSES: dict[str, dict[str, str]] = {
    "prime_rl": {
        "display": "prime-rl", "advantage": "group_mean", "ratio": "divergence_clip", "kl": "to_sampler",
        "aggregation": "token_mean(scope=batch)", "bias": "biased: by 1/ΣT",
        "source": "prime-rl; 2602.04879, 2602.02276", "run_by": "prime-rl by default",
    },
    "skyrl": _GROUP | {
        "display": "SkyRL", "ratio": "token_clip", "aggregation": "token_mean(scope=batch)",
        "published_kl": "in_loss(kind=k3), over sequences", "bias": "biased: by group spread and 1/ΣT",
        "source": "SkyRL", "run_by": "SkyRL by default",
    },
    "prompt_mean": _GROUP | _BY_TOKENS | {
        "display": "SkyRL, prompt mean", "ratio": "token_clip",
        "source": "SkyRL: loss_reduction=prompt_mean", "run_by": "SkyRL",
    },
    "sapo": _GROUP | _BY_LENGTH | {
        "display": "SAPO", "ratio": "soft_gate", "source": "2511.20347", "run_by": "TRL, verl, SkyRL",
    },
    "vespo": _GROUP | _BY_TOKENS | {
        "display": "VESPO", "ratio": "gamma_weight", "source": "2602.10693", "run_by": "TRL",
    },
    "luspo": _GROUP | {
        "display": "LUSPO", "ratio": "sequence_clip", "bias": "biased: by group spread",
        "source": "2602.05261", "run_by": "TRL",
    },
    "dppo_tv": _GROUP | _BY_TOKENS | {
        "display": "DPPO-TV", "ratio": "divergence_clip", "source": "2602.04879", "run_by": "verl, prime-rl, SkyRL",
    },
    "dppo_kl": _GROUP | _BY_TOKENS | {
        "display": "DPPO-KL", "ratio": "divergence_clip(kind=kl)", "source": "2602.04879", "run_by": "verl",
    },
    "clip_cov": _GROUP | _BY_TOKENS | {
        "display": "Clip-Cov", "ratio": "clip_cov", "source": "2505.22617", "run_by": "verl, SkyRL",
    },
    "kl_cov": _GROUP | _BY_TOKENS | {
        "display": "KL-Cov", "ratio": "kl_cov", "source": "2505.22617", "run_by": "verl, SkyRL",
    },
    "gpg": {
        "display": "GPG", "advantage": "group_mean", "scale": "nonzero_share", "aggregation": "token_mean",
        "published_kl": "none", "bias": "biased: by 1/ΣT and α", "source": "2504.02546", "run_by": "verl",
    },
    "dro": {
        "display": "DRO", "advantage": "group_mean", "kl": "to_sampler(beta=0.1)", "aggregation": "token_mean",
        "bias": "biased: ratios ignored, and the penalty", "source": "verl: loss_mode=dro, beta required; 2405.19107",
        "run_by": "verl",
    },
    "m2po": _GROUP | _BY_TOKENS | {
        "display": "M2PO", "ratio": "second_moment_clip", "source": "2510.01161", "run_by": "AReaL",
    },
    "pods": _GROUP | _BY_LENGTH | {
        "display": "PODS", "ratio": "token_clip", "filter": "max_variance", "source": "2504.13818",
    },
    "topr": {
        "display": "TOPR", "advantage": "group_mean", "ratio": "tapered", "published_kl": "none",
        "bias": "on-policy (N−1)/N·∇J", "source": "2503.14286",
    },
    "fspo": _GROUP | {
        "display": "FSPO", "ratio": "root_length_clip", "bias": "biased: by group spread", "source": "2509.09177",
    },
    "bnpo": _GROUP | {
        "display": "BNPO's token mean", "ratio": "token_clip", "aggregation": "local_token_mean",
        "bias": "biased: by group spread and 1/ΣT", "source": "TRL: loss_type=bnpo", "run_by": "TRL",
    },
    "off_policy_mask": _GROUP | _BY_LENGTH | {
        "display": "Off-policy sequence mask", "ratio": "token_clip(max_drift=0.1)",
        "published_kl": "in_loss(kind=k3, by_ratio=True)",
        "source": "DeepSeek-V3.2, 2512.02556, eq. 9; δ to be chosen", "run_by": "TRL, slime",
    },
}  # fmt: skip
