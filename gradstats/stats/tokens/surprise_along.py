"""Surprise over entropy along completions, which is 0 on-policy."""

from __future__ import annotations

import numpy as np

from gradstats.stats.measured import MeasuredEntropies
from gradstats.stats.on_policy.surprise import excess_of
from gradstats.stats.tokens.token_profile import TokenProfile, doubling_bins
from gradstats.stats.tokens.token_sums import (
    over_prompts,
    prompts_of,
)


def surprise_along(measured: MeasuredEntropies) -> TokenProfile:
    r"""Check each position for on-policy sampling, forward only: the mean of :math:`-\log π(y_t) - H_t`.

    Args:
        measured: a measurement; no token probes are needed.

    Returns:
        A profile over positions 1, 2, 3–4, 5–8, … of counted tokens, in nats per token.

    Raises:
        ValueError: for fewer than 3 prompts.
    """
    prompts = prompts_of(measured)
    lengths = np.array([int(mask.sum()) for mask in measured.rollouts.masks])
    first, last = doubling_bins(int(lengths.max()))
    excess = excess_of(measured)
    estimates, counts = [], []
    for start, stop in zip(first - 1, last, strict=True):
        alive = lengths > start
        total = np.array([values[start:stop].sum() for values in excess])
        tokens = np.array([float(len(values[start:stop])) for values in excess])
        surprise = over_prompts(total, prompts, alive) / over_prompts(tokens, prompts, alive)
        estimates.append(surprise.estimate())
        counts.append(len(surprise.replicates))
    return TokenProfile("surprise", "position", first, last, tuple(estimates), np.array(counts))
