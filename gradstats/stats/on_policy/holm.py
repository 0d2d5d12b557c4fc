"""Several tests of one statement, at one level together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def holm(pvalues: Sequence[float]) -> Float[np.ndarray, " tests"]:
    """Adjust p-values so that rejecting those below a level errs, under any dependence, at most that often.

    The smallest of k is multiplied by k, the next by k − 1, and so on, without falling (Holm, Scandinavian Journal of
    Statistics 6, 1979).

    Args:
        pvalues: one for each test.
    """
    order = np.argsort(pvalues, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(pvalues, dtype=float)[order]), 1.0)
    return adjusted
