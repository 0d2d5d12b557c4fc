r"""The line by generalised least squares, with a random effect of each prompt."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize

from gradstats.stats.length_scaling.r_squared import r_squared
from gradstats.stats.length_scaling.regression import least_squares
from gradstats.stats.length_scaling.regression_lines import RegressionLine

# Where nothing is left of the noise within prompts, its share of the variance is still taken to be this.
LEAST_WITHIN = 1e-6


def random_prompt_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`\log‖S_{mi}‖² = c + 2α\log T_{mi} + u_m + e_{mi}` with a random effect u of the prompt.

    Generalised least squares, with the variances of u and e by restricted maximum likelihood (Patterson and Thompson,
    Biometrika 58, 1971). With ρ = Var u/Var e and n_m completions per prompt, it is least squares after subtracting
    θ_m = 1 − 1/√(1 + n_m ρ) of each prompt's means. Between ``"ols"`` (ρ = 0) and ``"within_prompt"`` (ρ = ∞), it
    has the least error of the three where the slopes within and between prompts are equal
    (:func:`gradstats.stats.mundlak_test`); where they are not, α is an average of the two.

    Args:
        x: (n,) log T.
        y: (n,) log‖S‖².
        clusters: (n,) prompt of each sequence; with one per prompt, this is ordinary least squares.
    """
    centre = float(x.mean())
    sizes = np.bincount(clusters)
    ratio = variance_ratio(x - centre, y, clusters)
    kept = 1.0 / np.sqrt(1.0 + sizes * ratio)  # 1 − θ

    def transformed(values: np.ndarray) -> np.ndarray:
        means = np.bincount(clusters, weights=values) / sizes
        return values - ((1.0 - kept) * means)[clusters]

    fit = least_squares(np.column_stack([kept[clusters], transformed(x - centre)]), transformed(y))
    slope, intercept = float(fit.coefficients[1]), float(fit.coefficients[0]) - float(fit.coefficients[1]) * centre
    return RegressionLine(
        slope=slope,
        intercept=intercept,
        r_squared=r_squared(y - intercept - slope * x, y - y.mean()),
        centre=centre,
        regression=fit,
        clusters=clusters,
        intervals=("t", "cluster"),
        exact=False,
    )


def variance_ratio(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]) -> float:
    """Var u/Var e by restricted maximum likelihood; 0 where every prompt has one completion, or the line is exact.

    Args:
        x: (n,) regressor next to the intercept.
        y: (n,) response.
        clusters: (n,) cluster of each row, numbered from 0.
    """
    sizes = np.bincount(clusters)
    columns = np.column_stack([np.ones_like(x), x, y - y.mean()])
    products = columns.T @ columns
    sums = np.zeros((len(sizes), 3))
    np.add.at(sums, clusters, columns)

    def residual(of: np.ndarray) -> float:
        return float(of[2, 2] - of[2, :2] @ np.linalg.solve(of[:2, :2], of[:2, 2]))

    def deviance(share: float) -> float:
        """Twice the negative restricted log-likelihood at Var u/(Var u + Var e), the variances' scale profiled out."""
        ratio = share / (1.0 - share)
        weighted = products - (sums * (ratio / (1.0 + sizes * ratio))[:, None]).T @ sums
        determinants = np.log1p(sizes * ratio).sum() + np.linalg.slogdet(weighted[:2, :2])[1]
        return (len(x) - 2) * float(np.log(residual(weighted))) + float(determinants)

    if sizes.max() == 1 or residual(products) <= 1e-12 * products[2, 2]:
        return 0.0
    found = optimize.minimize_scalar(
        deviance, bounds=(0.0, 1.0 - LEAST_WITHIN), method="bounded", options={"xatol": 1e-10}
    )
    share = float(found.x) if found.fun < deviance(0.0) else 0.0
    return share / (1.0 - share)
