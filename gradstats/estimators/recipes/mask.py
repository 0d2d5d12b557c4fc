r"""Which tokens count in the loss: those of the highest entropy, or those whose ratio to the sampler is in bounds."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.parameters import Parameters
from gradstats.estimators.ratios import log_ratios
from gradstats.estimators.recipes.components import component
from gradstats.estimators.recipes.kl import divergence

# Beyond e^20 verl's rollout correction does not distinguish ratios.
_BOUND = 20.0


@component("mask", "none")
def none(batch: Batch) -> Bool[np.ndarray, "n t"]:
    """Return every counted token."""
    return batch.mask


def _by_share(parameters: Parameters) -> bool:
    return parameters["threshold"] is None


@component(
    "mask",
    "top_entropy",
    level="token",
    needs=("entropy",),
    across_groups=lambda parameters: _by_share(parameters) and parameters["scope"] == "batch",
    fixed=lambda parameters: not _by_share(parameters),
)
def top_entropy(
    batch: Batch, share: float = 0.2, scope: str = "batch", threshold: float | None = None, rescale: bool = False
) -> Bool[np.ndarray, "n t"]:
    """Keep the tokens of the highest entropy: the top 20 % in Wang et al. 2506.01939.

    A token counts where its entropy is at least the (1 − share) quantile (linearly interpolated) of the entropies of
    all counted tokens. On-policy, the expected gradient loses the terms of all other tokens.

    Args:
        batch: the completions, with ``entropy``.
        share: the share of tokens that is kept.
        scope: whether the quantile is that of the ``"batch"``, as in the paper, or of each ``"group"``.
        threshold: keep entropies of at least this many nats instead, the same in every batch: the gradients can then be
            measured once, as a further weighting.
        rescale: whether the aggregation's denominators count only the kept tokens; in the paper they count all.
    """
    assert batch.entropy is not None
    if threshold is not None:
        return batch.mask & (batch.entropy >= threshold)
    if scope == "batch":
        return batch.mask & (batch.entropy >= np.quantile(batch.entropy[batch.mask], 1.0 - share))
    kept = np.zeros_like(batch.mask)
    for group in range(batch.n_groups):
        rows = batch.group_index == group
        least = np.quantile(batch.entropy[rows][batch.mask[rows]], 1.0 - share)
        kept[rows] = batch.mask[rows] & (batch.entropy[rows] >= least)
    return kept


@component("mask", "reject_tokens", level="token", of_ratios=True)
def reject_tokens(
    batch: Batch, high: float, kind: str = "k1", low: float | None = None, rescale: bool = True
) -> Bool[np.ndarray, "n t"]:
    r"""Keep tokens whose divergence from the sampler is in bounds.

    ``token_k1``, ``token_k2`` and ``token_k3`` of verl's ``rollout_rs``. With
    ρ = π/π_old, k1 = −log ρ, k2 = ½(log ρ)² and k3 = ρ − 1 − log ρ.

    Args:
        batch: the completions, with both log-probabilities; without ``old_logprobs`` all tokens are kept.
        high: the greatest ratio ρ for k1, the greatest divergence for k2 and k3.
        kind: "k1", "k2" or "k3".
        low: the least ratio for k1, 1/high by default, as in verl; k2 and k3 have none.
        rescale: whether the aggregation's denominators count only the kept tokens, as in verl.

    Raises:
        ValueError: for bounds that do not suit the kind.
    """
    divergence = _divergence(batch, kind)
    return batch.mask & _within(divergence, kind, low, high)


@component("mask", "reject_completions", of_ratios=True)
def reject_completions(
    batch: Batch,
    high: float,
    kind: str = "k1",
    over: str = "mean",
    low: float | None = None,
    rescale: bool = True,
) -> Bool[np.ndarray, "n t"]:
    """Keep completions whose divergence from the sampler is in bounds: verl's ``seq_mean_k1``, ``seq_sum_k3``, ….

    Args:
        batch: the completions, with both log-probabilities; without ``old_logprobs`` all are kept.
        high: the greatest ratio for k1 (of the whole completion for "sum", the geometric mean for "mean"), the greatest
            divergence for k2 and k3.
        kind: "k1", "k2" or "k3", as for :func:`reject_tokens`.
        over: the "mean", "sum" or "max" over the completion's tokens; "max" for k2 and k3 only.
        low: the least ratio for k1, 1/high by default; k2 and k3 have none.
        rescale: whether the aggregation's denominators count only what is kept, as in verl.

    Raises:
        ValueError: for bounds or a maximum that do not suit the kind.
    """
    if kind == "k1" and over == "max":
        raise ValueError("mask reject_completions: over='max' is for k2 and k3, never negative: choose one, or 'mean'")
    divergence = np.where(batch.mask, _divergence(batch, kind), 0.0)
    of_completion = divergence.max(axis=1) if over == "max" else divergence.sum(axis=1)
    if over == "mean":
        of_completion = of_completion / batch.lengths
    return batch.mask & _within(of_completion, kind, low, high)[:, None]


def _divergence(batch: Batch, kind: str) -> Float[np.ndarray, "n t"]:
    log_ratio = np.clip(log_ratios(batch, "rejection by the ratio"), -_BOUND, _BOUND)
    return divergence(-log_ratio, kind)


def _within(divergence: np.ndarray, kind: str, low: float | None, high: float) -> np.ndarray:
    """Return whether divergences are in bounds, of which those of k1 are given as ratios."""
    if kind != "k1":
        if low is not None:
            raise ValueError(f"low is {low:g}, but {kind} is never negative and has no lower bound: leave low out")
        return divergence <= high
    least = 1.0 / high if low is None else low
    if least > high:
        raise ValueError(f"low is {least:g}, above high, {high:g}: give the greatest ratio that is kept as high")
    return (-divergence >= np.log(least)) & (-divergence <= np.log(high))
