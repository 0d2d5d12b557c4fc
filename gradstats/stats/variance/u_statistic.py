"""The mean inner product over pairs of different units, which estimates ⟨E a, E b⟩ without bias."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def mean_over_pairs(
    first: Float[np.ndarray, "*k m d"],
    second: Float[np.ndarray, "*k m e"],
    signs: Float[np.ndarray, " features"] | None = None,
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k m"]]:
    r"""Compute the U-statistic of ⟨a_m, b_m'⟩ over ordered pairs m ≠ m', on all M units and without each of them.

    With :math:`A = \sum_m a_m` and :math:`B = \sum_m b_m`,

    .. math:: U = \frac{⟨A, B⟩ - \sum_m ⟨a_m, b_m⟩}{M(M-1)}, \qquad
        U_{(m)} = \frac{M(M-1)\,U - ⟨a_m, B⟩ - ⟨A, b_m⟩ + 2⟨a_m, b_m⟩}{(M-1)(M-2)}

    Args:
        first: (…, M, d) the a_m.
        second: (…, M, e) the b_m; coordinates that only one of the two has are 0 in the other.
        signs: the signature of inner products, of d and e coordinates or more; None where it is positive.

    Returns:
        U, and the U without each unit: NaN for two units.
    """
    common = min(first.shape[-1], second.shape[-1])
    a, b = first[..., :common], in_dual(second[..., :common], signs)
    m = a.shape[-2]
    total_a, total_b = a.sum(axis=-2), b.sum(axis=-2)
    diagonal = np.einsum("...md,...md->...m", a, b)
    pairs = np.einsum("...d,...d->...", total_a, total_b) - diagonal.sum(axis=-1)
    with_total = (a @ total_b[..., None] + b @ total_a[..., None])[..., 0]
    without = pairs[..., None] - with_total + 2.0 * diagonal
    return np.asarray(pairs / (m * (m - 1.0))), without / ((m - 1.0) * (m - 2.0) or np.nan)


def in_dual(
    vectors: Float[np.ndarray, "*rows d"], signs: Float[np.ndarray, " features"] | None
) -> Float[np.ndarray, "*rows d"]:
    """Return what vectors are multiplied with for inner products of a signature of these coordinates or more."""
    return vectors if signs is None else vectors * signs[: vectors.shape[-1]]


def inner_products(
    first: Float[np.ndarray, "rows d"],
    second: Float[np.ndarray, "rows d"],
    signs: Float[np.ndarray, " features"] | None,
) -> Float[np.ndarray, " rows"]:
    """Return ⟨first_r, second_r⟩ of each row."""
    return np.einsum("rd,rd->r", first, in_dual(second, signs))
