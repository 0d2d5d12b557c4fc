r"""The KL term to a reference policy: in the reward, or in the loss, as a weight of token scores.

With k1 = log π(y_t)/π_ref(y_t), k2 = ½k1² and k3 = e^{−k1} − 1 + k1 (Schulman, "Approximating KL divergence", 2020):
``in_reward`` subtracts β·k from r_t, so that it passes through the baseline and no gradient flows through k itself;
``in_loss`` adds −β·∇k, whose weight of s_t is −β for k1, −β·k1 for k2 and −β·(1 − e^{−k1}) for k3. On-policy the
gradient of k1 in the loss is zero in expectation, whatever the policies; in the reward, k1 is the kind whose expected
gradient is that of the divergence.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.estimators.baselines.packing import packed_rewards, unpack
from gradstats.estimators.batch import Batch
from gradstats.estimators.recipes.components import component

NEEDS = ("logprobs", "ref_logprobs")


def log_ratio_to_reference(batch: Batch) -> Float[np.ndarray, "n t"]:
    """Return k1 = log π/π_ref at every counted token, 0 elsewhere."""
    assert batch.logprobs is not None
    assert batch.ref_logprobs is not None
    return batch.logprobs - batch.ref_logprobs


@component("kl", "none")
def none(batch: Batch) -> tuple[Batch, float]:
    """No KL term: the batch unchanged, and nothing added to the weights."""
    return batch, 0.0


def divergence(k1: Float[np.ndarray, "n t"], kind: str) -> Float[np.ndarray, "n t"]:
    """Return an estimate of the divergence at each token, "k1", "k2" or "k3", from k1."""
    if kind == "k1":
        return k1
    return k1**2 / 2 if kind == "k2" else np.expm1(-k1) + k1


@component("kl", "in_reward", needs=NEEDS)
def in_reward(batch: Batch, beta: float = 0.05, kind: str = "k1") -> tuple[Batch, float]:
    """Replace the token rewards by r_t − β·k and add nothing to the loss.

    Args:
        batch: the completions, with ``logprobs`` and ``ref_logprobs``.
        beta: β.
        kind: "k1" (InstructGPT's, 2203.02155), "k2" or "k3"; verl's ``kl``, ``mse`` and ``low_var_kl``, the last of
            which it clamps to ±10.
    """
    penalty = beta * divergence(log_ratio_to_reference(batch), kind)
    token_rewards = unpack(packed_rewards(batch), batch.mask) - penalty
    return batch.with_fields(rewards=batch.rewards - penalty.sum(axis=1), token_rewards=token_rewards), 0.0


@component("kl", "in_loss", level="token", needs=NEEDS)
def in_loss(batch: Batch, beta: float = 0.001, kind: str = "k3") -> tuple[Batch, Float[np.ndarray, "n t"]]:
    """Add −β·dk/dk1 to the weight of s_t; the rewards stay as they are.

    Args:
        batch: the completions, with ``logprobs`` and ``ref_logprobs``.
        beta: β.
        kind: "k1", "k2" or "k3" (GRPO's).
    """
    k1 = log_ratio_to_reference(batch)
    slope = {"k1": np.ones_like(k1), "k2": k1, "k3": -np.expm1(-k1)}[kind]
    return batch, np.where(batch.mask, -beta * slope, 0.0)
