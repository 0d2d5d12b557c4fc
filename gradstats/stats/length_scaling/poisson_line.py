"""The scaling of the mean squared norm: Poisson pseudo-maximum-likelihood with a log link."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.length_scaling.regression import LeastSquares
from gradstats.stats.length_scaling.regression_lines import RegressionLine

MAX_STEPS = 100


def poisson_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`E[‖S‖² | T] = \exp(c + 2α\log T)` by :math:`\sum_i (‖S_i‖² - μ_i)(1, \log T_i) = 0`.

    Consistent whenever that mean is right, whatever the noise (Santos Silva and Tenreyro, Review of Economics
    and Statistics 88, 2006); least squares on logarithms is only if the noise is the same at all lengths.
    Errors are those of the working regression of (‖S‖² − μ)/√μ on √μ·(1, log T): cluster-robust (CR2), or
    HC3.

    Args:
        x: (n,) log T.
        y: (n,) log‖S‖².
        clusters: (n,) prompt of each sequence.

    Raises:
        ValueError: when the iteration does not converge.
    """
    centre = float(x.mean())
    design = np.column_stack([np.ones_like(x), x - centre])
    # The slope does not depend on the unit of ‖S‖²: choose one in which no exponential overflows.
    shift = float(y.max())
    target = np.exp(y - shift)
    # Start from least squares in logarithms, and halve steps that do not raise the likelihood.
    coefficients = np.linalg.lstsq(design, y - shift, rcond=None)[0]

    def likelihood(beta: np.ndarray) -> float:
        return float(target @ (design @ beta) - np.exp(design @ beta).sum())

    for _ in range(MAX_STEPS):
        mean = np.exp(design @ coefficients)
        gradient = design.T @ (target - mean)
        step = np.linalg.solve(design.T @ (design * mean[:, None]), gradient)
        if np.abs(step).max() < 1e-8:
            coefficients = coefficients + step
            break
        size = 1.0
        while likelihood(coefficients + size * step) < likelihood(coefficients) and size > 1e-6:
            size /= 2.0
        coefficients = coefficients + size * step
    else:
        raise ValueError(
            f"method='ppml' did not converge in {MAX_STEPS} steps: look for squared norms that are far apart"
        )
    mean = np.exp(design @ coefficients)
    root = np.sqrt(mean)
    bread = np.linalg.inv(design.T @ (design * mean[:, None]))
    working = LeastSquares(design * root[:, None], coefficients, (target - mean) / root, bread)
    slope = float(coefficients[1])
    spread = target.std() * mean.std()
    return RegressionLine(
        slope=slope,
        intercept=float(coefficients[0]) - slope * centre + shift,
        r_squared=float(np.corrcoef(target, mean)[0, 1] ** 2) if spread > 0 else float("nan"),
        centre=centre,
        regression=working,
        clusters=clusters,
        intervals=("hc3", "cluster"),
        default_interval="cluster",
    )
