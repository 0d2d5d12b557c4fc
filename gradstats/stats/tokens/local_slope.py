"""The exponent with which summed token energy grows along completions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gradstats.stats.jackknife import Estimate
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.tokens.token_profile import TokenProfile, doubling_bins
from gradstats.stats.tokens.token_sums import (
    FEWEST_PROMPTS,
    cumulative_by_probe,
    over_prompts,
    tokens_of,
)


def local_slope(measured: MeasuredTokens) -> TokenProfile:
    r"""Half the slope of :math:`\log E[W_t]` against :math:`\log t` along completions: :math:`α_\mathrm{energy}` from
    position to position.

    Between positions a and b it is :math:`\frac12\log(E W_b/E W_a)/\log(b/a)` over the completions that reach b, so
    that both ends are of the same completions: :math:`\frac12` where tokens have the same energy everywhere, more where
    later tokens have more.

    Args:
        measured: a measurement with ``token_projections``.

    Returns:
        A profile over positions 1–2, 2–4, 4–8, …; its bins share their ends.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    last = doubling_bins(int(np.max(measured.lengths)))[1]
    sums = [(scores.cumulative_energy()[scores.mask], cumulative_by_probe(scores)) for scores in tokens]
    kept, estimates, counts = [], [], []
    for start, stop in pairwise(last):
        alive = np.array([len(total) >= stop for total, _ in sums])
        if len(set(prompts[alive])) < FEWEST_PROMPTS:
            break
        ends = []
        for at in (start, stop):
            values = np.array([total[at - 1] if here else 0.0 for (total, _), here in zip(sums, alive, strict=True)])
            probes = np.stack(
                [each[at - 1] if here else np.zeros(each.shape[1]) for (_, each), here in zip(sums, alive, strict=True)]
            )
            ends.append(over_prompts(values, prompts, alive, probes))
        ratio = ends[1] / ends[0]
        of_log = ratio.estimate("log")
        width = 2.0 * np.log(stop / start)
        kept.append((start, stop))
        estimates.append(Estimate(np.log(ratio.value) / width, of_log.stderr / width, "raw", of_log.degrees))
        counts.append(len(ratio.replicates))
    bounds = np.array(kept, dtype=np.int64).reshape(-1, 2)
    return TokenProfile(
        "local_slope", "position", bounds[:, 0], bounds[:, 1], tuple(estimates), np.array(counts, dtype=np.int64)
    )
