"""The parts of the variance of the estimate of ‖E g‖²."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gradstats.stats.variance.u_statistic import in_dual

#: The parts are estimated from at most so many prompts, so that they cost little beside everything else.
MOST_PAIRED_PROMPTS = 512


@dataclass(frozen=True)
class SignalComponents:
    r"""The parts of the variance of the mean of :math:`h(m, l) = ⟨g_m, g_l⟩` over pairs of prompts.

    The mean over the pairs of M prompts has the variance :math:`\frac{4ζ}{M} + \frac{2δ}{M(M-1)}` (Hoeffding, Annals of
    Mathematical Statistics 19, 1948).

    Attributes:
        mean: s, the mean of h: ‖E g‖².
        linear: :math:`ζ = \mathrm{Cov}(h(m, l), h(m, k))`, the variance of ⟨E g, g_m⟩ over prompts.
        quadratic: :math:`δ = \mathrm{Var}\,h - 2ζ`.
    """

    mean: float
    linear: float
    quadratic: float


def signal_components(
    means: Float[np.ndarray, "m d"], signs: Float[np.ndarray, " features"] | None = None
) -> SignalComponents | None:
    r"""Estimate the mean of ⟨g_m, g_l⟩ over pairs of prompts, and the two parts of its variance.

    Each product of means is an average over distinct prompts, so that none of the three is biased by squares; they may
    be negative.

    Args:
        means: gradients of the prompts, in random order; of more than 512, the first 512 are used.
        signs: the signature of inner products in these coordinates, or more; None where it is positive.

    Returns:
        s, ζ and δ; None for fewer than 4 prompts.
    """
    g = means[:MOST_PAIRED_PROMPTS]
    m = len(g)
    if m < 4:
        return None
    pairs = in_dual(g, signs) @ g.T
    np.fill_diagonal(pairs, 0.0)
    rows, total, squares = pairs.sum(axis=1), float(pairs.sum()), float((pairs**2).sum())
    triples = float(rows @ rows) - squares  # Σ h(m, l) h(m, k) over l ≠ k
    quadruples = total**2 - 4.0 * triples - 2.0 * squares  # Σ h(m, l) h(k, j) over four distinct prompts
    mean_sq = quadruples / (m * (m - 1.0) * (m - 2.0) * (m - 3.0))
    linear = triples / (m * (m - 1.0) * (m - 2.0)) - mean_sq
    variance = squares / (m * (m - 1.0)) - mean_sq
    return SignalComponents(total / (m * (m - 1.0)), linear, variance - 2.0 * linear)
