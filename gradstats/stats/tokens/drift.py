"""The drift of token scores along completions, which is 0 on-policy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.tokens.token_profile import TokenProfile, doubling_bins
from gradstats.stats.tokens.token_sums import (
    heavy_products,
    masked_projections,
    over_prompts,
    tokens_of,
)


def drift_along(measured: MeasuredTokens) -> TokenProfile:
    r"""Check each position for on-policy sampling: :math:`E⟨s_t, \sum_{u<t}s_u⟩ / E‖s_t‖²`, 0 on-policy.

    Summed over t the numerators are :math:`\frac12(E‖S‖² - \sum_t E‖s_t‖²)`: a drift begins where this leaves 0.

    Args:
        measured: a measurement with ``token_projections``.

    Returns:
        A profile over positions 1, 2, 3–4, 5–8, … of counted tokens.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    first, last = doubling_bins(int(np.max(measured.lengths)))
    sums = np.zeros((len(tokens), len(first)))
    energies, along = np.zeros_like(sums), np.zeros((len(tokens), len(first), tokens[0].n_probes))
    for row, scores in enumerate(tokens):
        projections = masked_projections(scores)
        before = np.cumsum(projections, axis=0) - projections
        products = (projections * before)[scores.mask]
        excess = _heavy_excess_before(scores)[scores.mask]
        energy = scores.energy()[scores.mask]
        for place, (start, stop) in enumerate(zip(first - 1, last, strict=True)):
            along[row, place] = products[start:stop].sum(axis=0)
            sums[row, place] = along[row, place].mean() + excess[start:stop].sum()
            energies[row, place] = energy[start:stop].sum()
    estimates, counts = [], []
    for place, start in enumerate(first):
        alive = measured.lengths >= start
        product = over_prompts(sums[:, place], prompts, alive, along[:, place])
        estimates.append((product / over_prompts(energies[:, place], prompts, alive)).estimate())
        counts.append(len(product.replicates))
    return TokenProfile("drift", "position", first, last, tuple(estimates), np.array(counts))


def _heavy_excess_before(scores: TokenScores) -> Float[np.ndarray, " t"]:
    """At each heavy token, the same summed over the heavy tokens before it."""
    excess = np.zeros(len(scores.mask))
    products = heavy_products(scores)
    if len(products):
        excess[scores.heavy_positions] = np.tril(products, -1).sum(axis=1)
    return excess
