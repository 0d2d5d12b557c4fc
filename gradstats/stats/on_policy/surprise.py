"""By how much tokens are more, or less, surprising than the scored distribution expects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.jackknife import Estimate
from gradstats.stats.measured import MeasuredEntropies
from gradstats.stats.on_policy.prompt_mean import prompt_mean


def surprise(excess: Sequence[Float[np.ndarray, " _"]], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate the mean over prompts of :math:`\sum_t(-\log π(y_t) - H_t)`, in nats per completion.

    It is 0 where every token was drawn from the scored distribution, since each term then has mean zero given the
    tokens before, and negative where the sampler prefers likely tokens.

    Args:
        excess: for each completion, :math:`-\log π(y_t) - H_t` of its counted tokens; see :func:`excess_of`.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    return prompt_mean(np.array([float(np.sum(tokens)) for tokens in excess]), prompts).estimate()


def excess_of(measured: MeasuredEntropies) -> list[np.ndarray]:
    """Return, for each completion, −log π − H of its counted tokens, in nats."""
    return [
        -(np.asarray(logprob, dtype=np.float64)[mask] + np.asarray(entropy, dtype=np.float64)[mask])
        for logprob, entropy, mask in zip(measured.logprobs, measured.entropy, measured.rollouts.masks, strict=True)
    ]
