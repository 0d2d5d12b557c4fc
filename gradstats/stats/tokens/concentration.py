"""The share of a completion's token energy that its heaviest tokens hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.tokens.token_profile import TokenProfile
from gradstats.stats.tokens.token_sums import (
    masked_projections,
    tokens_of,
)

COUNTS = (1, 2, 4, 8, 16, 32)


def concentration(measured: MeasuredTokens, counts: Sequence[int] = COUNTS) -> TokenProfile:
    r"""Return the share of a completion's token energy in its m heaviest tokens, averaged over completions.

    It is :math:`\sum_{t \in \mathrm{top}\,m} e_t/\sum_t e_t` with :math:`e_t = ‖s_t‖²`. Tokens are ranked by energies
    along one half of the probes and summed with those along the other (heavy tokens are known exactly), and both ways
    are averaged, so that noise in the ranking does not bias the share upward.

    Args:
        measured: a measurement with ``token_projections``.
        counts: numbers m.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    shares = np.zeros((len(tokens), len(counts)))
    for row, scores in enumerate(tokens):
        projections = masked_projections(scores)
        halves = [
            replace(scores, projections=projections[:, half]).energy()
            for half in (slice(0, None, 2), slice(1, None, 2))
        ]
        if scores.n_probes == 1:
            halves[1] = halves[0]
        for ranking, energy in (halves, halves[::-1]):
            held = np.cumsum(energy[np.argsort(-ranking)])
            shares[row] += [0.5 * held[min(count, len(held)) - 1] / held[-1] for count in counts]
    sizes = np.bincount(prompts)
    means = [mean_statistic(np.bincount(prompts, held) / sizes) for held in shares.T]
    at = np.asarray(counts, dtype=np.int64)
    return TokenProfile(
        "share", "tokens", at, at, tuple(each.estimate() for each in means), np.full(len(at), len(set(prompts)))
    )
