r"""Ratio and clip: from advantages and ρ = π/π_old to the weights of the token scores; and corrections of a mismatch.

The gradient of every surrogate objective is Σ w_t s_t; these functions compute w. ``log_ratio`` is log ρ_t,
(N, T), 0 where masked out; on-policy it is 0 everywhere and w = A.

A correction is a further factor of w, through which no gradient flows: a function of the mismatch π_prox/π_old between
the trainer's policy as the step began and the engine that drew the tokens (``log_mismatch``, (N, T)). The ratio of a
recipe with a correction is π/π_prox, the staleness alone.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.grouping import reduce_by_group
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import AT_LEAST_1, AT_MOST_1
from gradstats.estimators.ratios import exponential, log_ratios
from gradstats.estimators.recipes.components import LARGEST_LOG_WEIGHT, component

_AT_MOST_1_OR_NONE = (lambda value: value is None or AT_MOST_1[0](value), f"None or {AT_MOST_1[1]}")


def at_level(log_ratio: Float[np.ndarray, "n t"], batch: Batch, level: str) -> Float[np.ndarray, "n t"]:
    r"""Return log ρ_t, or at the level "sequence" GSPO's log s_i, its mean over the completion, at every token."""
    if level == "token":
        return log_ratio
    return np.where(batch.mask, log_ratio.sum(axis=1, keepdims=True) / np.maximum(batch.lengths, 1)[:, None], 0.0)


@component("ratio", "token_clip", skip=3, level="token")
def token_clip(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    max_drift: float | None = None,
) -> Float[np.ndarray, "n t"]:
    r"""Return the gradient of min(ρA, clip(ρ, 1−ε_low, 1+ε_high)A): w = ρA, and 0 for a clipped token.

    PPO, Schulman et al. 1707.06347; DAPO's clip-higher (2503.14476) is ε = (0.2, 0.28).

    Args:
        eps_low: tokens with A < 0 are clipped below 1 − ε_low.
        eps_high: tokens with A > 0 are clipped above 1 + ε_high.
        dual_clip: c of max(·, cA) for A < 0 (Ye et al. 1912.09729; 3 in verl): such tokens are also
            clipped above ρ = c. The two-sided clip of INTELLECT-2 (2505.07291), TRL's ``delta``, is the same gradient.
        max_drift: δ of DeepSeek-V3.2's off-policy sequence mask (2512.02556, equation 9): completions with A < 0 have
            weight 0 where the mean over tokens of log π_old − log π is greater, π_old being the sampler.
    """
    ratio = exponential(log_ratio)
    clipped = np.where(advantages > 0, ratio > 1 + eps_high, ratio < 1 - eps_low)
    if dual_clip is not None:
        clipped |= (advantages < 0) & (ratio > dual_clip)
    if max_drift is not None:
        drift = -log_ratios(batch).sum(axis=1, keepdims=True) / np.maximum(batch.lengths, 1)[:, None]
        clipped |= (advantages < 0) & (drift > max_drift)
    return np.where(clipped, 0.0, ratio * advantages)


@component("ratio", "sequence_clip", skip=3)
def sequence_clip(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
) -> Float[np.ndarray, "n t"]:
    r"""GSPO, 2507.18071: s_i = exp(mean_t log ρ_t), clipped per sequence, each token weighted s_i·A.

    With ``sequence_mean`` this is the gradient of mean_i min(s_i A_i, clip(s_i)A_i), since ∇s_i is s_i times
    the mean token score.

    Args:
        eps_low: sequences with A < 0 are clipped below 1 − ε_low.
        eps_high: sequences with A > 0 are clipped above 1 + ε_high.
    """
    ratio = exponential(at_level(log_ratio, batch, "sequence"))
    clipped = np.where(advantages > 0, ratio > 1 + eps_high, ratio < 1 - eps_low)
    return np.where(clipped, 0.0, ratio * advantages)


@component("ratio", "geometric_clip", skip=3, level="token")
def geometric_clip(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    eps_low: float = 0.4,
    eps_high: float = 0.4,
) -> Float[np.ndarray, "n t"]:
    r"""GMPO, 2507.20673: w = A·exp(mean_t of the clipped log ρ_t), and 0 for a clipped token.

    With ``sequence_mean`` this is the gradient of mean_i A_i·(Π_t clipped ρ_t)^{1/T_i}.

    Args:
        eps_low: tokens with A < 0 are clipped below log ρ = −ε_low.
        eps_high: tokens with A > 0 are clipped above log ρ = ε_high.
    """
    clipped = np.where(advantages > 0, np.minimum(log_ratio, eps_high), np.maximum(log_ratio, -eps_low))
    mean = np.where(batch.mask, clipped, 0.0).sum(axis=1) / np.maximum(batch.lengths, 1)
    return np.where(clipped == log_ratio, exponential(mean)[:, None] * advantages, 0.0)


@component("ratio", "sequence_product", skip=3)
def sequence_product(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    eps_low: float | None = None,
    eps_high: float | None = None,
    truncate: float | None = None,
    normalize: bool = False,
) -> Float[np.ndarray, "n t"]:
    r"""Return the ratio of the whole completion, ρ_i = Π_t ρ_t: w = ρ_i·A, which makes an off-policy gradient unbiased.

    With sequence-level advantages from other completions alone, E_old[ρ_i A_i S_i] is the gradient of the scored
    policy wherever the sampler can draw whatever that policy can. Its variance grows with the length; clipping,
    truncation and normalisation lower it at the cost of a bias.

    Args:
        eps_low: with A < 0, completions are clipped below ρ_i = 1 − ε_low: PPO's min(ρA, clip(ρ)A) for whole
            completions. Without it they are not.
        eps_high: with A > 0, completions are clipped above ρ_i = 1 + ε_high.
        truncate: c of the weight min(ρ_i, c), truncated importance sampling (Ionides, JCGS 17, 2008), through which no
            gradient flows.
        normalize: divide the weights by their mean over the group: ρ_i·N/Σ_j ρ_j.

    Raises:
        ValueError: for a clip together with ``truncate``, or a ratio that overflows.
    """
    if truncate is not None and (eps_low, eps_high) != (None, None):
        raise ValueError("ratio sequence_product either clips (eps_low, eps_high) or truncates (truncate): give one")
    log_sequence = log_ratio.sum(axis=1)
    kept = np.ones(advantages.shape, dtype=bool)
    if eps_high is not None:
        kept &= ~((advantages > 0) & (log_sequence > np.log1p(eps_high))[:, None])
    if eps_low is not None:
        kept &= ~((advantages < 0) & (log_sequence < _log_of_rest(eps_low))[:, None])
    # A clipped ratio is not computed: it may overflow.
    log_sequence = np.where(kept.any(axis=1), log_sequence, 0.0)
    if truncate is not None:
        log_sequence = np.minimum(log_sequence, np.log(truncate))
    ratio = exponential(log_sequence)
    if normalize:
        ratio = (
            ratio / (reduce_by_group(ratio, batch.group_index, batch.n_groups) / batch.group_sizes)[batch.group_index]
        )
    return np.where(kept, ratio[:, None] * advantages, 0.0)


def _log_of_rest(eps: float) -> float:
    """Return log(1 − ε), −∞ from ε = 1 on."""
    return float(np.log1p(-eps)) if eps < 1 else -np.inf


@component("ratio", "clipped_weight", skip=3, level="token", signed=False)
def clipped_weight(
    advantages: Float[np.ndarray, "n t"],
    log_ratio: Float[np.ndarray, "n t"],
    batch: Batch,
    convention: str = "verl",
    eps_low: float = 0.2,
    eps_high: float | None = None,
    level: str = "token",
) -> Float[np.ndarray, "n t"]:
    r"""CISPO, 2506.13585: w = stop-grad(clip(ρ))·A, so that no token is dropped.

    The paper has no lower bound (``eps_low=1``) and does not state ε_high. verl and slime clamp ρ to [0.8, 1.2], SkyRL
    to [1, 6] and TRL to at most ``epsilon_high``: 5 is recommended, 0.2 its default.

    Args:
        convention: "verl" clamps ρ to [1−ε_low, 1+ε_high]; "trl" takes min(ρ, ε_high), an absolute cap.
        eps_low: ε_low, used by "verl" only.
        eps_high: ε_high; by default 0.2 for "verl" and 5 for "trl".
        level: "sequence" takes :math:`s_i`, GSPO's mean over the completion, in place of ρ, as TRL's
            ``importance_sampling_level``.
    """
    ratio = exponential(at_level(log_ratio, batch, level))
    if convention == "trl":
        return np.minimum(ratio, 5.0 if eps_high is None else eps_high) * advantages
    return np.clip(ratio, 1 - eps_low, 1 + (0.2 if eps_high is None else eps_high)) * advantages


@component("ratio", "log_ratio_penalty", skip=3, proportional=False)
def log_ratio_penalty(
    advantages: Float[np.ndarray, "n t"], log_ratio: Float[np.ndarray, "n t"], batch: Batch, tau: float
) -> Float[np.ndarray, "n t"]:
    r"""Return the gradient of A_i·log π − (τ/2)(log π/π_old)² of the sequence: w = A − τ·Σ_t log ρ_t.

    Kimi k1.5, 2501.12599.

    Args:
        tau: τ, the same as in the baseline.
    """
    return advantages - tau * log_ratio.sum(axis=1, keepdims=True)


@component("correction", "truncate_tokens", skip=2, level="token", of_ratios=True)
def truncate_tokens(
    log_mismatch: Float[np.ndarray, "n t"],
    batch: Batch,
    cap: float = 2.0,
    low: float | None = None,
    averaged: bool = False,
) -> Float[np.ndarray, "n t"]:
    r"""Return min(ρ_t, C): truncated importance sampling of tokens (TIS).

    Yao et al. 2025, *Your efficient RL framework secretly brings you off-policy RL training*; ``rollout_is="token"`` of
    verl, TRL's ``token_truncate``. A token is weighted as if what precedes it had been drawn from the policy itself.

    Args:
        cap: C, the greatest weight (2 to 5 in use).
        low: the least weight, as in TRL; none by default.
        averaged: give every token the mean over its completion, as TRL's loss does beside ratios of sequences.
    """
    return _averaged(np.exp(np.clip(log_mismatch, _log_or_none(low), np.log(cap))), batch, averaged)


def _averaged(weights: Float[np.ndarray, "n t"], batch: Batch, averaged: bool) -> Float[np.ndarray, "n t"]:
    if not averaged:
        return weights
    mean = np.where(batch.mask, weights, 0.0).sum(axis=1) / np.maximum(batch.lengths, 1)
    return np.where(batch.mask, mean[:, None], 0.0)


@component("correction", "truncate_completions", skip=2, of_ratios=True)
def truncate_completions(
    log_mismatch: Float[np.ndarray, "n t"], batch: Batch, cap: float = 2.0, low: float | None = None
) -> Float[np.ndarray, "n t"]:
    r"""Return min(Π_t ρ_t, C) for every token of a completion: ``rollout_is="sequence"`` of verl, TRL's
    ``sequence_truncate``.

    Args:
        cap: C, the greatest weight.
        low: the least weight, as in TRL; none by default.
    """
    least = max(_log_or_none(low), -LARGEST_LOG_WEIGHT)
    of_completion = np.clip(log_mismatch.sum(axis=1), least, np.log(cap))
    return np.where(batch.mask, np.exp(of_completion)[:, None], 0.0)


@component(
    "correction",
    "mask_tokens",
    skip=2,
    level="token",
    of_ratios=True,
    rules={"low": _AT_MOST_1_OR_NONE, "high": AT_LEAST_1},
)
def mask_tokens(
    log_mismatch: Float[np.ndarray, "n t"],
    batch: Batch,
    low: float | None = 0.5,
    high: float = 5.0,
    averaged: bool = False,
) -> Float[np.ndarray, "n t"]:
    r"""Return ρ_t within a band and 0 outside: IcePop (Ring-1T, 2510.18855; INTELLECT-3, 2512.16144, equation 1).

    The aggregation's denominators count the tokens outside as well; to leave them out there too, reject them with the
    mask ``reject_tokens`` (MIS).

    Args:
        low: the least ratio that is kept; None for no bound.
        high: the greatest.
        averaged: as for ``truncate_tokens``.
    """
    return _averaged(_within_band(log_mismatch, low, high), batch, averaged)


@component("correction", "mask_completions", skip=2, of_ratios=True, rules={"low": AT_MOST_1, "high": AT_LEAST_1})
def mask_completions(
    log_mismatch: Float[np.ndarray, "n t"], batch: Batch, high: float = 3.0, low: float | None = None
) -> Float[np.ndarray, "n t"]:
    r"""Return :math:`w_i = ρ_i·1[ρ_i ≤ C]` with :math:`ρ_i = \prod_t ρ_{i,t}`, for every token of the completion.

    TRL's default with vLLM: ``vllm_importance_sampling_mode="sequence_mask"``, C = 3. Without the mask
    :math:`E[ρ_i R_i S_i] = ∇J`; it loses the completions that the policy prefers most over the sampler. Dropped
    completions stay in the aggregation's denominators.

    Args:
        high: C, the greatest ratio that is kept.
        low: the least; none by default.
    """
    return np.where(batch.mask, _within_band(log_mismatch.sum(axis=1), low, high)[:, None], 0.0)


def _within_band(log_weight: np.ndarray, low: float | None, high: float) -> np.ndarray:
    """Return weights, 0 outside the band."""
    inside = (log_weight >= _log_or_none(low)) & (log_weight <= np.log(high))
    return np.where(inside, np.exp(np.minimum(log_weight, np.log(high))), 0.0)


def _log_or_none(low: float | None) -> float:
    return -np.inf if low is None else float(np.log(low))
