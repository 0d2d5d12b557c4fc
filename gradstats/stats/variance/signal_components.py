"""The parts of the variance of the estimate of ‖E g‖²."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from gradstats.stats.jackknife import require_level
from gradstats.stats.plans.prompt_plan import ASSURANCE, smallest
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

    def prompts_to_resolve(self, of: float, estimate: float, confidence_level: float) -> int | float:
        r"""Return how many prompts put the interval of ‖E g‖² above 0 in 80 % of studies; infinite for none.

        The estimate from M prompts varies by :math:`4ζ/M + 2δ/M²`, of which the jackknife counts the second part twice.
        The signal s is resolved in 80 % of studies where
        :math:`z\sqrt{4ζ/M + 4δ/M²} + z_{0.8}\sqrt{4ζ/M + 2δ/M²} \le s`. A part whose estimate is negative counts as 0,
        and ζ is taken in proportion to s.

        Args:
            of: s, the signal to be resolved.
            estimate: the estimate of ‖E g‖² that ζ belongs to.
            confidence_level: of the interval.
        """
        if not of > 0:
            return math.inf
        z, z_80 = (float(stats.norm.ppf(at)) for at in (0.5 + require_level(confidence_level) / 2.0, ASSURANCE))
        first = 4.0 * max(self.linear, 0.0) * (of / estimate if estimate > 0 else 1.0)
        second = 2.0 * max(self.quadratic, 0.0)

        def enough(m: int) -> bool:
            own = z * math.sqrt(first / m + 2.0 * second / m**2)
            return own + z_80 * math.sqrt(first / m + second / m**2) <= of

        return smallest(enough)


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
