"""Profiles of token scores, from their projections and the heavy tokens, without another pass of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
from jaxtyping import Float, Int
from scipy import signal

from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.jackknife import Estimate, Statistic, mean_statistic
from gradstats.stats.measured import MeasuredEnergies, MeasuredEntropies, MeasuredRollouts, MeasuredTokens
from gradstats.stats.tokens.token_profile import TokenProfile, doubling_bins
from gradstats.stats.variance.probe_error import probed_statistic

FEWEST_PROMPTS = 3
COUNTS = (1, 2, 4, 8, 16, 32)


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
        products = _lagged(_projections(scores))
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
        product = _over_prompts(sums[:, place], prompts, alive, along[:, place])
        estimates.append((product / _over_prompts(energies[:, place], prompts, alive)).estimate())
        counts.append(len(product.replicates))
    return TokenProfile("correlation", "distance", first, last, tuple(estimates), np.array(counts))


def local_slope(measured: MeasuredTokens) -> TokenProfile:
    r"""Half the slope of log E[W_t] against log t along completions: α_energy from position to position.

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
    sums = [(_packed(scores.cumulative_energy(), scores.mask), _cumulative_by_probe(scores)) for scores in tokens]
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
            ends.append(_over_prompts(values, prompts, alive, probes))
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


def concentration(measured: MeasuredTokens, counts: Sequence[int] = COUNTS) -> TokenProfile:
    r"""Return the share of a completion's token energy in its m heaviest tokens, averaged over completions.

    Tokens are ranked by the energies along one half of the probes and summed with those along the other (heavy tokens
    are known exactly), and both ways are averaged, so that noise in the ranking does not bias the share upward.

    Args:
        measured: a measurement with ``token_projections``.
        counts: numbers m.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    shares = np.zeros((len(tokens), len(counts)))
    for row, scores in enumerate(tokens):
        projections = _projections(scores)
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
        projections = _projections(scores)
        before = np.cumsum(projections, axis=0) - projections
        products = _packed(projections * before, scores.mask)
        excess = _packed(_heavy_excess_before(scores), scores.mask)
        energy = _packed(scores.energy(), scores.mask)
        for place, (start, stop) in enumerate(zip(first - 1, last, strict=True)):
            along[row, place] = products[start:stop].sum(axis=0)
            sums[row, place] = along[row, place].mean() + excess[start:stop].sum()
            energies[row, place] = energy[start:stop].sum()
    estimates, counts = [], []
    for place, start in enumerate(first):
        alive = measured.lengths >= start
        product = _over_prompts(sums[:, place], prompts, alive, along[:, place])
        estimates.append((product / _over_prompts(energies[:, place], prompts, alive)).estimate())
        counts.append(len(product.replicates))
    return TokenProfile("drift", "position", first, last, tuple(estimates), np.array(counts))


def surprise_along(measured: MeasuredEntropies) -> TokenProfile:
    r"""Check each position for on-policy sampling, forward only: the mean of :math:`-\log π(y_t) - H_t`.

    Args:
        measured: a measurement; no token probes are needed.

    Returns:
        A profile over positions 1, 2, 3–4, 5–8, … of counted tokens, in nats per token.

    Raises:
        ValueError: for fewer than 3 prompts.
    """
    prompts = _prompts(measured)
    lengths = np.array([int(mask.sum()) for mask in measured.rollouts.masks])
    first, last = doubling_bins(int(lengths.max()))
    excess = [
        -(np.asarray(logprobs) + np.asarray(entropy))[mask]
        for logprobs, entropy, mask in zip(measured.logprobs, measured.entropy, measured.rollouts.masks, strict=True)
    ]
    estimates, counts = [], []
    for start, stop in zip(first - 1, last, strict=True):
        alive = lengths > start
        total = np.array([values[start:stop].sum() for values in excess])
        tokens = np.array([float(len(values[start:stop])) for values in excess])
        surprise = _over_prompts(total, prompts, alive) / _over_prompts(tokens, prompts, alive)
        estimates.append(surprise.estimate())
        counts.append(len(surprise.replicates))
    return TokenProfile("surprise", "position", first, last, tuple(estimates), np.array(counts))


def summed_energy(measured: MeasuredRollouts) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n k"] | None]:
    r"""(n,) :math:`\sum_t‖s_t‖²` of each completion, and along each probe the energy of its light tokens."""
    measured = cast(MeasuredEnergies, measured)
    tokens = measured.token_scores() if hasattr(measured, "token_scores") else None
    if tokens is None:
        return np.array([float(np.sum(energy)) for energy in measured.token_energy or []]), None
    totals = np.array([scores.energy().sum() for scores in tokens])
    return totals, np.stack([_cumulative_by_probe(scores)[-1] for scores in tokens]) if tokens[0].n_probes else None


def has_token_energies(measured: MeasuredRollouts) -> bool:
    """Whether the energy of every token is known, exactly or from probes."""
    if not hasattr(measured, "token_scores"):
        return getattr(measured, "token_energy", None) is not None
    tokens = cast(MeasuredEnergies, measured).token_scores()
    return tokens is not None and (tokens[0].n_probes > 0 or not any(scores.light.any() for scores in tokens))


def tokens_of(measured: MeasuredTokens) -> tuple[list[TokenScores], Int[np.ndarray, " n"]]:
    """Return the token scores of every completion, and the number of its prompt.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens = None if measured.token_projections is None else measured.token_scores()
    if tokens is None:
        raise ValueError("the measurement has no probes of token scores: measure with token_probes=…, for example 32")
    return tokens, _prompts(measured)


def _prompts(measured: MeasuredRollouts) -> Int[np.ndarray, " n"]:
    prompts = np.unique(np.asarray(measured.rollouts.prompt_id), return_inverse=True)[1]
    n_prompts = int(prompts.max()) + 1
    if n_prompts < FEWEST_PROMPTS:
        raise ValueError(f"intervals need at least {FEWEST_PROMPTS} prompts, got {n_prompts}: measure more")
    return prompts


def _over_prompts(
    values: Float[np.ndarray, " n"],
    prompts: Int[np.ndarray, " n"],
    alive: np.ndarray,
    along: Float[np.ndarray, "n k"] | None = None,
) -> Statistic:
    """Return the sum over the completions of a prompt that count, averaged over the prompts that have any."""
    index = np.unique(prompts[alive], return_inverse=True)[1]
    totals = np.bincount(index, values[alive])
    if along is None:
        return probed_statistic(totals)
    per_probe = np.zeros((len(totals), along.shape[1]))
    np.add.at(per_probe, index, along[alive])
    return probed_statistic(totals, per_probe)


def _projections(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    assert scores.projections is not None
    return np.where(scores.mask[:, None], scores.projections, 0.0).astype(np.float64)


def _packed(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return values[mask]


def _cumulative_by_probe(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    """Return the squares of light tokens' projections, summed along the counted tokens."""
    squares = np.where(scores.light[:, None], _projections(scores) ** 2, 0.0)
    return np.cumsum(squares, axis=0)[scores.mask]


def _heavy_products(scores: TokenScores) -> Float[np.ndarray, "h h"]:
    """Inner products of different heavy tokens by their sketches, less those along the probes; 0 on the diagonal."""
    if scores.heavy_sketches is None or not len(scores.heavy_positions):
        return np.zeros((0, 0))
    wide = scores.heavy_sketches.astype(np.float64)
    along = _projections(scores)[scores.heavy_positions]
    excess = wide @ wide.T - along @ along.T / scores.n_probes
    np.fill_diagonal(excess, 0.0)
    return excess


def _lagged(values: Float[np.ndarray, "t k"]) -> Float[np.ndarray, "t k"]:
    """Σ_t values_t values_{t+d} at every distance d."""
    length = len(values)
    spectrum = np.fft.rfft(values, 2 * length, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * length, axis=0)[:length]


def _heavy_excess(scores: TokenScores) -> Float[np.ndarray, " t"]:
    """At every distance, the correction of the probes' sum of inner products by the sketches of heavy tokens."""
    products = _heavy_products(scores)
    first, second = np.triu_indices(len(products), 1)
    distances = scores.heavy_positions[second] - scores.heavy_positions[first]
    return np.bincount(distances, products[first, second], len(scores.mask)).astype(np.float64)


def _heavy_excess_before(scores: TokenScores) -> Float[np.ndarray, " t"]:
    """At each heavy token, the same summed over the heavy tokens before it."""
    excess = np.zeros(len(scores.mask))
    products = _heavy_products(scores)
    if len(products):
        excess[scores.heavy_positions] = np.tril(products, -1).sum(axis=1)
    return excess
