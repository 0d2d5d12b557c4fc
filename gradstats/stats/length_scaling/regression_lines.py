"""Lines through (log T, log ‖S‖²) that are regressions: pooled, within prompts, between prompts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from gradstats.stats.length_scaling.bootstrap import bootstrap_t_quantiles
from gradstats.stats.length_scaling.r_squared import r_squared
from gradstats.stats.length_scaling.regression import LeastSquares, least_squares

REGRESSION_INTERVALS = ("t", "hc3", "cluster", "bootstrap")


@dataclass(frozen=True)
class RegressionLine:
    """A fitted line with the (working) regression its errors come from.

    Attributes:
        slope: change of log‖S‖² with log T.
        intercept: value at log T = 0.
        r_squared: share of the variance explained; NaN when there is none to explain.
        centre: the log T at which the design was centred.
        regression: the least-squares fit; the last column of its design is log T.
        clusters: (rows,) prompt of each row of it, numbered from 0.
        intervals: the interval methods it offers.
        exact: whether the line is this regression, so that leaving rows out of it refits the line; elsewhere weights or
            variances would have to be estimated again.
        default_interval: the interval method used by default.
    """

    slope: float
    intercept: float
    r_squared: float
    centre: float
    regression: LeastSquares
    clusters: Int[np.ndarray, " rows"]
    intervals: tuple[str, ...] = REGRESSION_INTERVALS
    exact: bool = True
    default_interval: str = "cluster"

    def slope_stderr(self, method: str) -> float:
        """Return standard error of the slope that an interval method uses; the bootstrap studentises by CR0."""
        if method == "bootstrap":
            return float(self.regression.cr0(self._slope_contrast(), self.clusters)[0])
        return float(self._errors(self._slope_contrast(), method)[0][0])

    def degrees(self) -> float:
        """Return the degrees of freedom of the standard error by the default interval method."""
        return float(self._errors(self._slope_contrast(), self.default_interval)[1][0])

    def slope_interval(
        self, level: float, method: str, n_resamples: int, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Return the interval of the slope."""
        if method == "bootstrap":
            return self._bootstrap(level, n_resamples, rng)
        stderr, degrees = self._errors(self._slope_contrast(), method)
        margin = float(stats.t.ppf(0.5 + level / 2.0, degrees[0]) * stderr[0])
        return self.slope - margin, self.slope + margin

    def band(
        self, x: Float[np.ndarray, " points"], level: float, method: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the line at some log T, and the ends of its pointwise interval."""
        contrasts = (x - self.centre)[:, None]
        if self.regression.design.shape[1] == 2:
            contrasts = np.column_stack([np.ones(len(x)), contrasts])
        stderr, degrees = self._errors(contrasts, method)
        value = self.intercept + self.slope * x
        margin = stats.t.ppf(0.5 + level / 2.0, degrees) * stderr
        return value, value - margin, value + margin

    def _slope_contrast(self) -> Float[np.ndarray, "1 k"]:
        return np.eye(self.regression.design.shape[1])[-1:]

    def _errors(self, contrasts: Float[np.ndarray, "c k"], method: str) -> tuple[np.ndarray, np.ndarray]:
        if method == "t":
            return self.regression.classical(contrasts)
        if method == "hc3":
            return self.regression.hc3(contrasts)
        if np.count_nonzero(self._informative()) < 3:
            self._warn_few_prompts()
            return np.full(len(contrasts), np.nan), np.full(len(contrasts), np.nan)
        return self.regression.cr2(contrasts, self.clusters)

    def _bootstrap(self, level: float, n_resamples: int, rng: np.random.Generator) -> tuple[float, float]:
        kept = self._informative()[self.clusters]
        design = self.regression.design[kept]
        tails = (0.5 - level / 2.0, 0.5 + level / 2.0)
        y = design @ self.regression.coefficients + self.regression.residuals[kept]
        clusters = np.unique(self.clusters[kept], return_inverse=True)[1]
        low_t, high_t, stderr = bootstrap_t_quantiles(
            design[:, -1], y, clusters, tails, n_resamples, rng, fit_intercept=design.shape[1] == 2
        )
        if not np.isfinite(low_t):
            self._warn_few_prompts()
        return self.slope - high_t * stderr, self.slope - low_t * stderr

    def _informative(self) -> Bool[np.ndarray, " prompts"]:
        """Return the prompts that enter the coefficients; within prompts, those of more than one length."""
        return np.bincount(self.clusters, weights=np.abs(self.regression.design).sum(axis=1)) > 0

    def _warn_few_prompts(self) -> None:
        warnings.warn(
            f"the completions answer {np.count_nonzero(self._informative())} prompt(s), too few to estimate how "
            "prompts differ, so the interval of alpha is NaN: measure more prompts, or use method='t' if the "
            "completions are independent",
            UserWarning,
            stacklevel=2,
        )


def pooled_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    """Fit the line by ordinary least squares on all sequences."""
    return _line(x, y, clusters)


def between_prompt_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    """Fit the line by ordinary least squares on the prompts' means: how prompts with longer answers differ."""
    mean_x, mean_y = _prompt_means(x, clusters), _prompt_means(y, clusters)
    return _line(mean_x, mean_y, np.arange(len(mean_x)))


def within_prompt_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    """Fit the line by least squares after subtracting each prompt's means (prompt fixed effects).

    Raises:
        ValueError: when no prompt has completions of different lengths.
    """
    from_mean_x = x - _prompt_means(x, clusters)[clusters]
    from_mean_y = y - _prompt_means(y, clusters)[clusters]
    informative = np.bincount(clusters, weights=np.abs(from_mean_x) > 1e-12) > 0
    if not informative.any():
        raise ValueError(
            "method='within_prompt' needs prompts with completions of different lengths, and here every "
            "prompt has one completion or one length: sample several completions per prompt"
        )
    # Prompts of one length do not move the slope, but their completions differ by noise, which the residuals estimate.
    from_mean_x[~informative[clusters]] = 0.0
    fit = least_squares(from_mean_x[:, None], from_mean_y, absorbed=1.0 / np.bincount(clusters)[clusters])
    slope = float(fit.coefficients[0])
    return RegressionLine(
        slope=slope,
        intercept=float(y.mean() - slope * x.mean()),
        r_squared=r_squared(fit.residuals, from_mean_y),
        centre=float(x.mean()),
        regression=fit,
        clusters=clusters,
    )


def _line(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]) -> RegressionLine:
    centre = float(x.mean())
    fit = least_squares(np.column_stack([np.ones_like(x), x - centre]), y)
    slope = float(fit.coefficients[1])
    return RegressionLine(
        slope=slope,
        intercept=float(fit.coefficients[0]) - slope * centre,
        r_squared=r_squared(fit.residuals, y - y.mean()),
        centre=centre,
        regression=fit,
        clusters=clusters,
    )


def _prompt_means(values: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]) -> np.ndarray:
    return np.bincount(clusters, weights=values) / np.bincount(clusters)
