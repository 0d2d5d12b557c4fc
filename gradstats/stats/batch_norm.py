"""The squared norm of a batch's gradient: what independent prompts make of it, and how far it scatters."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def variance_of_norm(
    squares: Float[np.ndarray, " m"],
    products: Float[np.ndarray, "m m"] | None,
    n_prompts: int,
    sketch_dim: int | None = None,
) -> float:
    r"""Estimate the variance of :math:`‖ĝ_B‖²`, with :math:`ĝ_B` the mean of the gradients g of B independent prompts.

    With :math:`E‖ĝ_B‖² = ‖μ‖² + \mathrm{tr}\,Σ/B`, :math:`a = ‖g‖²`, :math:`h = ⟨g, μ⟩`, μ and Σ mean and covariance
    of g, the decomposition of Hoeffding gives exactly

    .. math:: \mathrm{Var}‖ĝ_B‖² = \frac{\mathrm{Var}(a) + 4(B-1)\,\mathrm{Cov}(a, h) + 4(B-1)²\,\mathrm{Var}(h)
        + 2(B-1)\,\mathrm{tr}\,Σ²}{B³}.

    Each term is estimated without bias by means over two, three and four different prompts of products of
    :math:`k_{pq} = ⟨g_p, g_q⟩`: :math:`\mathrm{Var}(h) = E k_{pq}k_{pr} - E k_{pq}k_{rt}` and
    :math:`\mathrm{tr}\,Σ² = E k_{pq}² - 2 E k_{pq}k_{pr} + E k_{pq}k_{rt}`. Inner products of sketches in D dimensions
    scatter: :math:`E \hat k_{pq}\hat k_{pr} = k_{pq}k_{pr} + (a_p k_{qr} + k_{pq}k_{pr})/D`, which is taken off.

    Args:
        squares: :math:`a_p` of M prompts.
        products: :math:`k_{pq}`, whose diagonal is not used; None where gradients of prompts are orthogonal.
        n_prompts: B.
        sketch_dim: D; None where products are exact.

    Returns:
        The variance, without bias, so that it may be negative; NaN for fewer than four prompts.

    Example:
        >>> g = np.array([0.0, 1.0, 1.0, 2.0])  # of B = 1 prompt: the variance of g² among them
        >>> round(variance_of_norm(g**2, np.outer(g, g), 1), 2) == round(float(np.var(g**2, ddof=1)), 2)
        True
    """
    m, more = len(squares), n_prompts - 1.0
    if m < 4:
        return float("nan")
    found = float(np.var(squares, ddof=1))
    if products is not None:
        k = products - np.diag(np.diag(products))
        of_row, total, all_squares = k.sum(axis=1), float(k.sum()), float((k * k).sum())
        pairs, triples = m * (m - 1.0), m * (m - 1.0) * (m - 2.0)
        # Means over different prompts: of a_p k_pq, a_p k_qr, k_pq², k_pq k_pr and k_pq k_rt.
        own, apart = float(squares @ of_row) / pairs, float(squares @ (total - 2.0 * of_row)) / triples
        twice, chained = all_squares / pairs, (float(of_row @ of_row) - all_squares) / triples
        separate = (total**2 - 4.0 * float(of_row @ of_row) + 2.0 * all_squares) / (triples * (m - 3.0))
        if sketch_dim is not None:
            both = (float(squares.sum()) ** 2 - float(squares @ squares)) / pairs
            twice = (twice - both / sketch_dim) / (1.0 + 1.0 / sketch_dim)
            chained = (chained - apart / sketch_dim) / (1.0 + 1.0 / sketch_dim)
            separate /= 1.0 + 2.0 / sketch_dim
        found += 4.0 * more * (own - apart) + 4.0 * more**2 * (chained - separate)
        found += 2.0 * more * (twice - 2.0 * chained + separate)
    return found / n_prompts**3
