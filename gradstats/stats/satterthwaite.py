"""How well a standard error is known that some prompts carry more than others."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


def influential_prompts(influences: Float[np.ndarray, "... m"]) -> Float[np.ndarray, "..."]:
    r"""Return :math:`n = (\sum_m ψ_m²)²/\sum_m ψ_m⁴`, how many prompts of equal influence a standard error rests on.

    Args:
        influences: (…, M) of the prompts, up to a constant and a factor; where all are equal, n is infinite.
    """
    squares = (influences - influences.mean(axis=-1, keepdims=True)) ** 2
    total, fourth = squares.sum(axis=-1), (squares**2).sum(axis=-1)
    return np.divide(total**2, fourth, out=np.full_like(total, np.inf), where=fourth > 0)


def satterthwaite_degrees(n_influential: ArrayLike, n_prompts: int) -> Float[np.ndarray, "..."]:
    r"""Return the degrees of freedom of such a standard error, :math:`ν = 2/(1/n - 1/M)`; infinite for n ≥ M.

    The mean of M influences ψ has the squared standard error :math:`\sum ψ²/M²`, whose relative variance is
    :math:`\sum ψ⁴/(\sum ψ²)² - 1/M`; a χ² of ν degrees has :math:`2/ν`. Of normal influences :math:`n = M/3` and
    :math:`ν = M`. F. E. Satterthwaite, *An Approximate Distribution of Estimates of Variance Components*, 1946.

    Args:
        n_influential: n, of any shape.
        n_prompts: M.

    Example:
        >>> from gradstats.stats.satterthwaite import satterthwaite_degrees
        >>> float(satterthwaite_degrees(10.0, 30).round(6))
        30.0
    """
    beyond = 1.0 / np.asarray(n_influential, dtype=np.float64) - 1.0 / n_prompts
    return np.divide(2.0, beyond, out=np.full_like(beyond, np.inf), where=beyond > 0)
