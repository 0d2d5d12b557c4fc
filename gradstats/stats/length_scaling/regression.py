"""Lines through log-log points: least squares, Theil–Sen, gamma regression, random prompts, and their intervals."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.stats.jackknife import Estimate


def r_squared(residuals: Float[np.ndarray, " n"], deviations: Float[np.ndarray, " n"]) -> float:
    r"""Return :math:`R² = 1 - \sum_i e_i²/\sum_i d_i²`; NaN where nothing varies.

    The deviations d are those of the values from what the line without its slope gives: their mean, or prompts' means.
    """
    total = float(deviations @ deviations)
    return 1.0 - float(residuals @ residuals) / total if total > 0 else float("nan")


def squared_correlation(values: Float[np.ndarray, " n"], fitted: Float[np.ndarray, " n"]) -> float:
    r"""Return :math:`\mathrm{Corr}(y, \hat y)²`, the R² of a line that is not fitted by least squares; NaN likewise."""
    varies = values.std() * fitted.std() > 0
    return float(np.corrcoef(values, fitted)[0, 1] ** 2) if varies else float("nan")


_EIGENVALUE_FLOOR = 1e-10
# A point that leaves less than this of its noise in its residual is taken to have leverage 1.
_LEAST_SLACK = 1e-6
# Less than one degree of freedom, up to rounding.
_LEAST_DEGREES = 0.99
# Fewer prompts that enter a slope do not show how prompts differ.
_FEWEST_PROMPTS = 3


@dataclass(frozen=True)
class LeastSquares:
    """An ordinary least-squares fit, with the pieces every covariance estimator needs."""

    design: Float[np.ndarray, "n k"]  # the regressors X
    coefficients: Float[np.ndarray, " k"]  # β̂ = (XᵀX)⁻¹Xᵀy
    residuals: Float[np.ndarray, " n"]  # y − Xβ̂
    bread: Float[np.ndarray, "k k"]  # (XᵀX)⁻¹
    # (n,) leverages of the parameters eliminated before the fit (1/n_g of the means of a fixed-effects fit); they add
    # to those of X, and their sum reduces the residual degrees of freedom. None for none
    absorbed: Float[np.ndarray, " n"] | None = None

    @property
    def residual_df(self) -> int:
        """The residual degrees of freedom: n less the parameters, those eliminated before the fit included."""
        n_absorbed = 0 if self.absorbed is None else round(float(self.absorbed.sum()))
        return self.design.shape[0] - self.design.shape[1] - n_absorbed

    def classical(self, contrasts: Float[np.ndarray, "c k"]) -> tuple[np.ndarray, np.ndarray]:
        """Return standard errors of ``contrasts @ β̂`` under equal variances, and their degrees of freedom."""
        sigma_sq = self.residuals @ self.residuals / self.residual_df
        variance = sigma_sq * np.einsum("ck,kl,cl->c", contrasts, self.bread, contrasts)
        return np.sqrt(variance), np.full(len(contrasts), float(self.residual_df))

    def hc3(self, contrasts: Float[np.ndarray, "c k"]) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the HC3 standard errors: :math:`M Xᵀ\,\mathrm{diag}(e_i²/(1-h_i)²)\,X M` (MacKinnon and White 1985).

        A point of leverage 1 is fitted exactly and carries no information about the noise: if it moves a contrast, the
        standard error is NaN, as it is with a single residual degree of freedom.
        """
        leverage = np.einsum("nk,kl,nl->n", self.design, self.bread, self.design)
        slack = 1.0 - leverage - (0.0 if self.absorbed is None else self.absorbed)
        inflated = np.full_like(leverage, np.nan)
        # Without one of them, the others must leave residuals too: a line through two points has none.
        enough = self.residual_df >= 2
        np.divide(self.residuals, slack, out=inflated, where=(slack > _LEAST_SLACK) & enough)
        rows = contrasts @ self.bread @ self.design.T
        inflated[np.all(rows == 0.0, axis=0)] = 0.0  # such as the only completion of a prompt, within prompts
        variance = (rows**2) @ inflated**2
        return np.sqrt(variance), np.full(len(contrasts), float(self.residual_df))

    def cr0(self, contrasts: Float[np.ndarray, "c k"], clusters: Int[np.ndarray, " n"]) -> Float[np.ndarray, " c"]:
        r"""Return standard errors (c,) without correction for few clusters: :math:`M\,(\sum_g X_gᵀe_ge_gᵀX_g)\,M`."""
        scores = np.zeros((int(clusters.max()) + 1, self.design.shape[1]))
        np.add.at(scores, clusters, self.design * self.residuals[:, None])
        return np.sqrt(((contrasts @ self.bread @ scores.T) ** 2).sum(axis=1))

    def cr2(
        self, contrasts: Float[np.ndarray, "c k"], clusters: Int[np.ndarray, " n"]
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the CR2 cluster-robust standard errors (c,) with Satterthwaite degrees of freedom (c,).

        :math:`V = M\,(\sum_g X_gᵀ A_g e_g e_gᵀ A_g X_g)\,M` with :math:`A_g = (I - H_{gg})^{-1/2}`, unbiased when the
        errors are independent with equal variances; the degrees of freedom match the first two moments of the variance
        estimate under that working model (Bell and McCaffrey, Survey Methodology 28, 2002; Pustejovsky and Tipton, JBES
        36, 2018).
        """
        k = self.design.shape[1]
        root = np.linalg.cholesky(self.bread)
        # With Z = X·root, H_gg = Z_g Z_gᵀ, so A_g Z_g = Z_g (I − Z_gᵀZ_g)^{-1/2}: k × k work a cluster.
        z = self.design @ root
        n_clusters = int(clusters.max()) + 1
        grams = np.zeros((n_clusters, k, k))  # Z_gᵀZ_g
        np.add.at(grams, clusters, z[:, :, None] * z[:, None, :])
        moments = np.zeros((n_clusters, k))  # Z_gᵀe_g
        np.add.at(moments, clusters, z * self.residuals[:, None])
        values, vectors = np.linalg.eigh(np.eye(k) - grams)
        inverse_root = np.zeros_like(values)
        np.divide(1.0, np.sqrt(np.maximum(values, 0.0)), out=inverse_root, where=values > _EIGENVALUE_FLOOR)
        adjust = np.einsum("gij,gj,glj->gil", vectors, inverse_root, vectors)

        directions = contrasts @ root
        weights = np.einsum("ci,gij->cgj", directions, adjust)
        variance = np.einsum("cgj,gj->cg", weights, moments) ** 2
        # p_g = (I − H)_{·g} A_g X_g M c:  p_gᵀp_h = δ_gh q_gᵀq_g − u_gᵀu_h with u_g = Z_gᵀq_g.
        u = np.einsum("gij,cgj->cgi", grams, weights)
        q_sq = np.einsum("cgi,cgi->cg", weights, u)
        u_sq = np.einsum("cgi,cgi->cg", u, u)
        trace = (q_sq - u_sq).sum(axis=1)
        outer = np.einsum("cgi,cgj->cij", u, u)
        trace_sq = (q_sq**2 - 2.0 * q_sq * u_sq).sum(axis=1) + (outer**2).sum(axis=(1, 2))
        degrees = np.full(len(contrasts), np.nan)
        np.divide(trace**2, trace_sq, out=degrees, where=trace_sq > 0)
        return np.sqrt(variance.sum(axis=1)), degrees

    def contrast(self, contrast: Float[np.ndarray, " k"], clusters: Int[np.ndarray, " n"]) -> Estimate:
        """Estimate one linear combination of the coefficients, with the error and degrees of freedom of :meth:`cr2`."""
        stderr, degrees = self.cr2(contrast[None], clusters)
        return Estimate(float(contrast @ self.coefficients), float(stderr[0]), "raw", float(degrees[0]))

    def without_each(self, clusters: Int[np.ndarray, " n"]) -> Float[np.ndarray, "g k"]:
        """Return the coefficients without each cluster in turn: :math:`β̂ - (XᵀX - X_gᵀX_g)^{-1} X_gᵀ e_g`."""
        k = self.design.shape[1]
        root = np.linalg.cholesky(self.bread)
        z = self.design @ root
        rest = np.tile(np.eye(k), (int(clusters.max()) + 1, 1, 1))
        np.subtract.at(rest, clusters, z[:, :, None] * z[:, None, :])
        moments = np.zeros(rest.shape[:2])
        np.add.at(moments, clusters, z * self.residuals[:, None])
        alone = np.flatnonzero(np.linalg.eigvalsh(rest)[:, 0] <= _EIGENVALUE_FLOOR)
        if len(alone):
            raise ValueError(f"without cluster {alone[0]} the slope is not determined: measure more prompts")
        return self.coefficients - np.linalg.solve(rest, moments[:, :, None])[:, :, 0] @ root.T


def least_squares(
    design: Float[np.ndarray, "n k"],
    response: Float[np.ndarray, " n"],
    absorbed: Float[np.ndarray, " n"] | None = None,
) -> LeastSquares:
    """Fit ``response`` on ``design``, of full column rank, by ordinary least squares.

    ``absorbed`` are leverages of the parameters already eliminated from both.
    """
    q, r = np.linalg.qr(design)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() <= np.finfo(float).eps * len(design) * diagonal.max():
        raise ValueError("design has linearly dependent columns: drop the regressor that repeats another")
    inverse = np.linalg.inv(r)
    coefficients = inverse @ (q.T @ response)
    return LeastSquares(
        design=design,
        coefficients=coefficients,
        residuals=response - design @ coefficients,
        bread=inverse @ inverse.T,
        absorbed=absorbed,
    )


_RESAMPLES_AT_ONCE = 256
# A resample's error below this share of the sample's is rounding about a line through all that was drawn.
_LEAST_ERROR = 1e-6


def bootstrap_t_quantiles(
    x: Float[np.ndarray, " n"],
    y: Float[np.ndarray, " n"],
    clusters: Int[np.ndarray, " n"],
    probabilities: tuple[float, float],
    n_resamples: int,
    rng: np.random.Generator,
    fit_intercept: bool = True,
) -> tuple[float, float, float]:
    r"""Return the quantiles of the studentised slope when whole clusters are drawn with replacement.

    Each resample gives :math:`t^* = (\hat b^* - \hat b)/\mathrm{se}^*` with the cluster-robust standard error of
    the resample (CR0). Because only sums over clusters enter, all resamples are matrix products. Where one cluster is
    drawn throughout, or a line goes through all that was drawn, slope or error is undetermined, and :math:`t^*` could
    be anything: where such resamples are more than the tails beyond the quantiles, these are NaN.
    """
    n_clusters = int(clusters.max()) + 1

    def by_cluster(values: np.ndarray) -> np.ndarray:
        return np.bincount(clusters, weights=values, minlength=n_clusters)

    n, sx, sy = by_cluster(np.ones_like(x)), by_cluster(x), by_cluster(y)
    sxx, sxy = by_cluster(x * x), by_cluster(x * y)

    def slopes(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = weights @ n
        mean_x = weights @ sx / total if fit_intercept else np.zeros_like(total)
        mean_y = weights @ sy / total if fit_intercept else np.zeros_like(total)
        spread = weights @ sxx - total * mean_x**2
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (weights @ sxy - total * mean_x * mean_y) / spread
            intercept = (mean_y - slope * mean_x)[:, None]
            # Σ_i (x_i − x̄)(y_i − a − b x_i) of each cluster, from its sums.
            b, centre = slope[:, None], mean_x[:, None]
            score = sxy - intercept * sx - b * sxx - centre * (sy - intercept * n - b * sx)
            stderr = np.sqrt((weights * score**2).sum(axis=1)) / spread
        stderr[spread <= _EIGENVALUE_FLOOR * (weights @ sxx)] = np.nan
        return slope, stderr

    slope, stderr = slopes(np.ones((1, n_clusters)))
    draws = []
    for start in range(0, n_resamples, _RESAMPLES_AT_ONCE):
        size = min(_RESAMPLES_AT_ONCE, n_resamples - start)
        weights = rng.multinomial(n_clusters, np.full(n_clusters, 1.0 / n_clusters), size=size).astype(float)
        again, again_stderr = slopes(weights)
        again_stderr[again_stderr <= _LEAST_ERROR * stderr] = np.nan
        draws.append((again - slope) / again_stderr)
    t = np.concatenate(draws)
    known = t[np.isfinite(t)]
    if len(known) < len(t) * (1.0 - min(probabilities[0], 1.0 - probabilities[1])):
        return np.nan, np.nan, float(stderr[0])
    low, high = np.quantile(known, probabilities)
    return float(low), float(high), float(stderr[0])


_REGRESSION_INTERVALS = ("t", "hc3", "cluster", "bootstrap")


@dataclass(frozen=True)
class RegressionLine:
    """A fitted line with the (working) regression its errors come from."""

    slope: float  # change of log‖S‖² with log T
    intercept: float  # value at log T = 0
    r_squared: float  # share of the variance explained; NaN when there is none to explain
    centre: float  # the log T at which the design was centred
    regression: LeastSquares  # the least-squares fit; the last column of its design is log T
    clusters: Int[np.ndarray, " rows"]  # prompt of each row of it, numbered from 0
    intervals: tuple[str, ...] = _REGRESSION_INTERVALS
    # whether the line is this regression, so that leaving rows out of it refits the line; elsewhere weights or
    # variances would have to be estimated again
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
        margin = float(scipy.special.stdtrit(degrees[0], 0.5 + level / 2.0) * stderr[0])
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
        margin = scipy.special.stdtrit(degrees, 0.5 + level / 2.0) * stderr
        return value, value - margin, value + margin

    def _slope_contrast(self) -> Float[np.ndarray, "1 k"]:
        return np.eye(self.regression.design.shape[1])[-1:]

    def _errors(self, contrasts: Float[np.ndarray, "c k"], method: str) -> tuple[np.ndarray, np.ndarray]:
        if method == "t":
            return self.regression.classical(contrasts)
        if method == "hc3":
            return self.regression.hc3(contrasts)
        if self._n_informative < _FEWEST_PROMPTS:
            unknown, _ = _unknown(self._n_informative, "t")
            return np.full(len(contrasts), unknown), np.full(len(contrasts), unknown)
        stderr, degrees = self.regression.cr2(contrasts, self.clusters)
        # A variance that less than one prompt decides: Student's quantiles say nothing there.
        return np.where(degrees < _LEAST_DEGREES, np.nan, stderr), degrees

    def _bootstrap(self, level: float, n_resamples: int, rng: np.random.Generator) -> tuple[float, float]:
        if self._n_informative < _FEWEST_PROMPTS:
            return _unknown(self._n_informative, "t")
        kept = self._informative()[self.clusters]
        design = self.regression.design[kept]
        tails = (0.5 - level / 2.0, 0.5 + level / 2.0)
        y = design @ self.regression.coefficients + self.regression.residuals[kept]
        clusters = np.unique(self.clusters[kept], return_inverse=True)[1]
        low_t, high_t, stderr = bootstrap_t_quantiles(
            design[:, -1], y, clusters, tails, n_resamples, rng, fit_intercept=design.shape[1] == 2
        )
        if not np.isfinite(low_t):
            return _unknown(self._n_informative, "t")
        return self.slope - high_t * stderr, self.slope - low_t * stderr

    def _informative(self) -> Bool[np.ndarray, " prompts"]:
        """Return the prompts that enter the coefficients; within prompts, those of more than one length."""
        return np.bincount(self.clusters, weights=np.abs(self.regression.design).sum(axis=1)) > 0

    @property
    def _n_informative(self) -> int:
        return int(np.count_nonzero(self._informative()))


def _unknown(n_prompts: int, instead: str) -> tuple[float, float]:
    """Return an interval of NaN, after a warning that so few prompts do not show how prompts differ."""
    warnings.warn(
        f"the completions answer {n_prompts} prompt(s), too few to estimate how prompts differ, so the interval of "
        f"alpha is NaN: measure more prompts, or use method='{instead}' if the completions are independent",
        UserWarning,
        stacklevel=3,
    )
    return np.nan, np.nan


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
    if np.ptp(mean_x) <= 1e-12:
        raise ValueError(
            "method='between_prompt' needs prompts that differ in their mean log T, and here there is one prompt, or "
            "one mean: measure more prompts"
        )
    return _line(mean_x, mean_y, np.arange(len(mean_x)))


def within_prompt_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    """Fit the line by least squares after subtracting each prompt's means (prompt fixed effects)."""
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


_LARGEST = 5000


@dataclass(frozen=True)
class TheilSenLine:
    """The Theil–Sen line, with intervals from the ranks of the pairwise slopes."""

    slope: float  # median of the slopes of all pairs of different log T
    intercept: float  # median of log‖S‖² − slope·log T
    x: Float[np.ndarray, " n"]  # log T
    y: Float[np.ndarray, " n"]  # log‖S‖²
    clusters: Int[np.ndarray, " n"]  # prompt of each sequence
    default_interval: str = "cluster"  # "cluster", with each sequence a cluster where every prompt has one completion
    # "cluster" and "rank" (Sen 1968; independent sequences, equal noise at all lengths)
    intervals: tuple[str, ...] = ("rank", "cluster")
    r_squared: float = float("nan")  # NaN: a median explains no share of a variance

    def slope_stderr(self, method: str) -> float:
        """Return the half-width of a method's 95 % interval in units of a normal distribution's 1.96."""
        low, high = self.slope_interval(0.95, method, 0, np.random.default_rng(0))
        return (high - low) / (2.0 * float(scipy.special.ndtri(0.975)))

    def degrees(self) -> float:
        """Return the degrees of freedom of the standard error by the default interval method."""
        return float(self.clusters.max())

    def slope_interval(
        self, level: float, method: str, n_resamples: int, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Return the interval of the slope; nothing is drawn."""
        if method == "rank":
            from scipy.stats import theilslopes

            _, _, low, high = np.asarray(theilslopes(self.y, self.x, alpha=level), dtype=float)
            return float(low), float(high)
        return self._clustered(level)

    def band(
        self, x: Float[np.ndarray, " points"], level: float, method: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the line, and the lines of the interval's slopes through the median point."""
        low, high = self.slope_interval(level, method, 0, np.random.default_rng(0))
        centre = float(np.median(self.x))
        value = self.intercept + self.slope * x
        ends = np.stack([(slope - self.slope) * (x - centre) for slope in (low, high)])
        return value, value + ends.min(axis=0), value + ends.max(axis=0)

    def _clustered(self, level: float) -> tuple[float, float]:
        """Invert Kendall's S as Sen does, with the variance of S by prompt.

        S = Σ_{i<j} sgn(x_j − x_i) sgn(r_j − r_i) moves with each sequence by S_i, the terms of the sum that it is in,
        so its variance is Σ_g(Σ_{i∈g} S_i)².
        """
        dx = self.x[:, None] - self.x[None, :]
        dy = self.y[:, None] - self.y[None, :]
        by_sequence = (np.sign(dx) * np.sign(dy - self.slope * dx)).sum(axis=1)
        n_clusters = int(self.clusters.max()) + 1
        if n_clusters < _FEWEST_PROMPTS:
            return _unknown(n_clusters, "rank")
        by_prompt = np.bincount(self.clusters, weights=by_sequence)
        variance = float(by_prompt @ by_prompt) * n_clusters / (n_clusters - 1.0)
        later = dx > 0
        slopes = np.sort(dy[later] / dx[later])
        if variance == 0.0 and by_sequence.any():  # signs cancel within each prompt, and leave no error to estimate
            return _unknown(n_clusters, "rank")
        half_width = float(scipy.special.stdtrit(n_clusters - 1, 0.5 + level / 2.0) * np.sqrt(variance))
        low = int(np.floor((len(slopes) - half_width) / 2.0))
        high = int(np.ceil((len(slopes) + half_width) / 2.0))
        if low < 0 or high >= len(slopes):
            return -np.inf, np.inf
        return float(slopes[low]), float(slopes[high])


def theil_sen_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> TheilSenLine:
    """Fit the Theil–Sen line (Sen, JASA 63, 1968)."""
    if len(x) > _LARGEST:
        raise ValueError(
            f"method='theil_sen' uses all pairs and takes at most {_LARGEST} sequences, got {len(x)}: fit "
            "a random subset"
        )
    from scipy.stats import theilslopes

    slope = float(np.asarray(theilslopes(y, x), dtype=float)[0])
    return TheilSenLine(slope, float(np.median(y - slope * x)), x, y, clusters)


_MAX_STEPS = 100


def gamma_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`μ = E[‖S‖² | T] = \exp(c + 2α\log T)` by :math:`\sum_i (‖S_i‖²/μ_i - 1)(1, \log T_i) = 0`.

    Consistent whenever that mean is right, whatever the noise (Gourieroux, Monfort and Trognon, Econometrica 52,
    1984), and efficient where the spread of ‖S‖² is proportional to its mean, as that of norms about is: each
    sequence enters by ‖S‖² *relative* to the line, so that the longest ones do not decide alone. Errors are those of
    the working regression of ‖S‖²/μ − 1 on (1, log T): cluster-robust (CR2), or HC3.
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
    """Newton's method on a concave likelihood, halving steps that do not raise it."""

    def likelihood(beta: np.ndarray) -> float:
        line = design @ beta
        with np.errstate(over="ignore", invalid="ignore"):  # a step that is far too long
            terms = target * line - np.exp(line) if power == 1 else -target * np.exp(-line) - line
        return float(terms.sum())

    beta = start
    for _ in range(_MAX_STEPS):
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


# Where nothing is left of the noise within prompts, its share of the variance is still taken to be this.
_LEAST_WITHIN = 1e-6


def random_prompt_line(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"]
) -> RegressionLine:
    r"""Fit :math:`\log‖S_{mi}‖² = c + 2α\log T_{mi} + u_m + e_{mi}` with a random effect u of the prompt.

    Generalised least squares, with the variances of u and e by restricted maximum likelihood (Patterson and Thompson,
    Biometrika 58, 1971). With ρ = Var u/Var e and n_m completions per prompt, it is least squares after subtracting
    θ_m = 1 − 1/√(1 + n_m ρ) of each prompt's means. Between ``"ols"`` (ρ = 0) and ``"within_prompt"`` (ρ = ∞), it
    has the least error of the three where the slopes within and between prompts are equal
    (:func:`gradstats.stats.mundlak_test`); where they are not, α is an average of the two.
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
    """Var u/Var e by restricted maximum likelihood; 0 where every prompt has one completion, or the line is exact."""
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
    found = scipy.optimize.minimize_scalar(
        deviance, bounds=(0.0, 1.0 - _LEAST_WITHIN), method="bounded", options={"xatol": 1e-10}
    )
    share = float(found.x) if found.fun < deviance(0.0) else 0.0
    return share / (1.0 - share)
