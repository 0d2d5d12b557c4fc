"""The share of the variance that a line explains."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def r_squared(residuals: Float[np.ndarray, " n"], deviations: Float[np.ndarray, " n"]) -> float:
    r"""Return :math:`R² = 1 - \sum_i e_i²/\sum_i d_i²`; NaN where nothing varies.

    Args:
        residuals: (n,) e, of the line.
        deviations: (n,) d, of the values from what the line without its slope gives: their mean, or prompts' means.
    """
    total = float(deviations @ deviations)
    return 1.0 - float(residuals @ residuals) / total if total > 0 else float("nan")


def squared_correlation(values: Float[np.ndarray, " n"], fitted: Float[np.ndarray, " n"]) -> float:
    r"""Return :math:`\mathrm{Corr}(y, \hat y)²`, the R² of a line that is not fitted by least squares; NaN likewise."""
    varies = values.std() * fitted.std() > 0
    return float(np.corrcoef(values, fitted)[0, 1] ** 2) if varies else float("nan")
