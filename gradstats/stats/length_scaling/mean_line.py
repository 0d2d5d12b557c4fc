r"""The scaling of the mean squared norm: pseudo-maximum-likelihood with a log link, gamma or Poisson."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.length_scaling.r_squared import squared_correlation
from gradstats.stats.length_scaling.regression import LeastSquares
from gradstats.stats.length_scaling.regression_lines import RegressionLine

MAX_STEPS = 100


def gamma_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`μ = E[‖S‖² | T] = \exp(c + 2α\log T)` by :math:`\sum_i (‖S_i‖²/μ_i - 1)(1, \log T_i) = 0`.

    Consistent whenever that mean is right, whatever the noise (Gourieroux, Monfort and Trognon, Econometrica 52,
    1984), and efficient where the spread of ‖S‖² is proportional to its mean, as that of norms about is: each
    sequence enters by ‖S‖² *relative* to the line, so that the longest ones do not decide alone. Errors are those of
    the working regression of ‖S‖²/μ − 1 on (1, log T): cluster-robust (CR2), or HC3.

    Args:
        x: (n,) log T.
        y: (n,) log‖S‖².
        clusters: (n,) prompt of each sequence.

    Raises:
        ValueError: when the iteration does not converge.
    """
    return _mean_line(x, y, clusters, 2)


def poisson_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`μ = E[‖S‖² | T] = \exp(c + 2α\log T)` by :math:`\sum_i (‖S_i‖² - μ_i)(1, \log T_i) = 0`.

    Consistent whenever that mean is right (Santos Silva and Tenreyro, Review of Economics and Statistics 88, 2006);
    efficient where the variance of ‖S‖² is proportional to its mean. Errors are those of the working regression of
    (‖S‖² − μ)/√μ on √μ·(1, log T): cluster-robust (CR2), or HC3. Arguments and errors are those of :func:`gamma_line`.
    """
    return _mean_line(x, y, clusters, 1)


def _mean_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"], power: int
) -> RegressionLine:
    """Return the line whose working variance is the mean to a power: 1 of Poisson, 2 of gamma."""
    centre = float(x.mean())
    design = np.column_stack([np.ones_like(x), x - centre])
    # The slope does not depend on the unit of ‖S‖²: choose one in which no exponential overflows.
    shift = float(y.max())
    target = np.exp(y - shift)
    coefficients = _maximise(design, target, np.linalg.lstsq(design, y - shift, rcond=None)[0], power)
    mean = np.exp(design @ coefficients)
    root = mean ** (1.0 - power / 2.0)
    bread = np.linalg.inv(design.T @ (design * (root**2)[:, None]))
    working = LeastSquares(design * root[:, None], coefficients, (target - mean) / mean ** (power / 2.0), bread)
    slope = float(coefficients[1])
    return RegressionLine(
        slope=slope,
        intercept=float(coefficients[0]) - slope * centre + shift,
        r_squared=squared_correlation(target, mean),
        centre=centre,
        regression=working,
        clusters=clusters,
        intervals=("hc3", "cluster"),
        exact=False,
    )


def _maximise(
    design: Float[np.ndarray, "n 2"], target: Float[np.ndarray, " n"], start: Float[np.ndarray, " 2"], power: int
) -> Float[np.ndarray, " 2"]:
    """Newton's method on a concave likelihood, halving steps that do not raise it.

    Raises:
        ValueError: when it does not converge.
    """

    def likelihood(beta: np.ndarray) -> float:
        line = design @ beta
        with np.errstate(over="ignore", invalid="ignore"):  # a step that is far too long
            terms = target * line - np.exp(line) if power == 1 else -target * np.exp(-line) - line
        return float(terms.sum())

    beta = start
    for _ in range(MAX_STEPS):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mean = np.exp(design @ beta)
            slope, curvature = (target - mean, mean) if power == 1 else (target / mean - 1.0, target / mean)
            information = design.T @ (design * curvature[:, None])
        if not np.isfinite(information).all() or np.linalg.matrix_rank(information) < 2:
            break
        step = np.linalg.solve(information, design.T @ slope)
        if np.abs(step).max() < 1e-8:
            return beta + step
        size = 1.0
        while not likelihood(beta + size * step) >= likelihood(beta) and size > 1e-6:
            size /= 2.0
        beta = beta + size * step
    raise ValueError("the scaling of the mean of ‖S‖² did not converge: look for squared norms that are far apart")
