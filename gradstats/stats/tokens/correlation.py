"""The correlation of token scores by the distance between tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy import signal

from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.tokens.token_profile import TokenProfile, doubling_bins
from gradstats.stats.tokens.token_sums import (
    heavy_products,
    masked_projections,
    over_prompts,
    tokens_of,
)


def token_correlation(measured: MeasuredTokens, *, max_distance: int | None = None) -> TokenProfile:
    r"""Return the correlation of token scores against the distance between the tokens.

    .. math:: ρ(d) = \frac{E\sum_t ⟨s_t, s_{t+d}⟩}{E\sum_t \frac12(‖s_t‖² + ‖s_{t+d}‖²)}

    a quotient of sums, so that tokens count by their energy; on-policy it is 0 at every distance. Inner products of
    two heavy tokens come from their sketches, others from the probes.

    Args:
        measured: a measurement with ``token_projections``.
        max_distance: greatest distance; the longest completion's by default.

    Returns:
        A profile over distances 1, 2, 3–4, 5–8, ….

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    longest = max(len(scores.mask) for scores in tokens) - 1
    first, last = doubling_bins(max(1, longest if max_distance is None else min(max_distance, longest)))
    n_probes = tokens[0].n_probes
    sums = np.zeros((len(tokens), len(first)))
    energies, along = np.zeros_like(sums), np.zeros((len(tokens), len(first), n_probes))
    for row, scores in enumerate(tokens):
        energy, counted = scores.energy(), scores.mask.astype(np.float64)
        products = _lagged(masked_projections(scores))
        exact = _heavy_excess(scores)
        paired = 0.5 * signal.correlate(energy, counted, method="fft")
        middle = len(energy) - 1
        energy_at = paired[middle:] + paired[middle::-1]
        for place in range(len(first)):
            span = slice(first[place], last[place] + 1)
            along[row, place] = products[span].sum(axis=0)
            energies[row, place] = energy_at[span].sum()
            sums[row, place] = along[row, place].mean() + exact[span].sum()
    estimates, counts = [], []
    for place in range(len(first)):
        alive = np.array([len(scores.mask) > first[place] for scores in tokens])
        product = over_prompts(sums[:, place], prompts, alive, along[:, place])
        estimates.append((product / over_prompts(energies[:, place], prompts, alive)).estimate())
        counts.append(len(product.replicates))
    return TokenProfile("correlation", "distance", first, last, tuple(estimates), np.array(counts))


def _lagged(values: Float[np.ndarray, "t k"]) -> Float[np.ndarray, "t k"]:
    """Return Σ_t values_t values_{t+d} at every distance d."""
    length = len(values)
    spectrum = np.fft.rfft(values, 2 * length, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * length, axis=0)[:length]


def _heavy_excess(scores: TokenScores) -> Float[np.ndarray, " t"]:
    """At every distance, the correction of the probes' sum of inner products by the sketches of heavy tokens."""
    products = heavy_products(scores)
    first, second = np.triu_indices(len(products), 1)
    distances = scores.heavy_positions[second] - scores.heavy_positions[first]
    return np.bincount(distances, products[first, second], len(scores.mask)).astype(np.float64)
