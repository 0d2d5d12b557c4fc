"""Sums of token scores over completions and prompts, as every token-level quantity needs them."""

from __future__ import annotations

from typing import cast

import numpy as np
from jaxtyping import Float, Int

from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.jackknife import Statistic
from gradstats.stats.measured import MeasuredEnergies, MeasuredRollouts, MeasuredTokens
from gradstats.stats.variance.probe_error import probed_statistic

FEWEST_PROMPTS = 3


def summed_energy(measured: MeasuredRollouts) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n k"] | None]:
    r"""Return (n,) :math:`\sum_t‖s_t‖²` of each completion, and along each probe the energy of its light tokens."""
    measured = cast(MeasuredEnergies, measured)
    tokens = measured.token_scores() if hasattr(measured, "token_scores") else None
    if tokens is None:
        return np.array([float(np.sum(energy)) for energy in measured.token_energy or []]), None
    totals = np.array([scores.energy().sum() for scores in tokens])
    return totals, np.stack([cumulative_by_probe(scores)[-1] for scores in tokens]) if tokens[0].n_probes else None


def has_token_energies(measured: MeasuredRollouts) -> bool:
    """Return whether the energy of every token is known, exactly or from probes."""
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
    return tokens, prompts_of(measured)


def prompts_of(measured: MeasuredRollouts) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion, numbered from 0.

    Raises:
        ValueError: for fewer than 3 prompts.
    """
    prompts = np.unique(np.asarray(measured.rollouts.prompt_id), return_inverse=True)[1]
    n_prompts = int(prompts.max()) + 1
    if n_prompts < FEWEST_PROMPTS:
        raise ValueError(f"intervals need at least {FEWEST_PROMPTS} prompts, got {n_prompts}: measure more")
    return prompts


def over_prompts(
    values: Float[np.ndarray, " n"],
    prompts: Int[np.ndarray, " n"],
    alive: np.ndarray,
    along: Float[np.ndarray, "n k"] | None = None,
) -> Statistic:
    """Return the sum over the completions of a prompt that count, averaged over the prompts that have any.

    Args:
        values: (n,) of each completion.
        prompts: (n,) its prompt, numbered from 0.
        alive: (n,) whether it counts.
        along: (n, K) the values along each of K probes; None where no probe enters.
    """
    index = np.unique(prompts[alive], return_inverse=True)[1]
    totals = np.bincount(index, values[alive])
    if along is None:
        return probed_statistic(totals)
    per_probe = np.zeros((len(totals), along.shape[1]))
    np.add.at(per_probe, index, along[alive])
    return probed_statistic(totals, per_probe)


def masked_projections(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    """Return the projections of token scores on the probes, 0 at tokens that do not count."""
    assert scores.projections is not None
    return np.where(scores.mask[:, None], scores.projections, 0.0).astype(np.float64)


def cumulative_by_probe(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    """Return the squares of light tokens' projections, summed along the counted tokens."""
    squares = np.where(scores.light[:, None], masked_projections(scores) ** 2, 0.0)
    return np.cumsum(squares, axis=0)[scores.mask]


def heavy_products(scores: TokenScores) -> Float[np.ndarray, "h h"]:
    """Inner products of different heavy tokens by their sketches, less those along the probes; 0 on the diagonal."""
    if scores.heavy_sketches is None or not len(scores.heavy_positions):
        return np.zeros((0, 0))
    wide = scores.heavy_sketches.astype(np.float64)
    along = masked_projections(scores)[scores.heavy_positions]
    excess = wide @ wide.T - along @ along.T / scores.n_probes
    np.fill_diagonal(excess, 0.0)
    return excess
