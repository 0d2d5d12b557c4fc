"""Resampling of whole prompts, for the slope of a regression."""

import numpy as np
from jaxtyping import Float, Int

RESAMPLES_AT_ONCE = 256


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
    the resample (CR0). Because only sums over clusters enter, all resamples are matrix products. Resamples in
    which the slope is not determined (for example, one cluster drawn throughout) carry no information and are left
    out.

    Args:
        x: (n,) regressor.
        y: (n,) response.
        clusters: (n,) cluster of each row, numbered from 0.
        probabilities: of the two quantiles.
        n_resamples: number of resamples.
        rng: source of randomness.
        fit_intercept: False for data whose means have been subtracted already.

    Returns:
        The two quantiles of t*, and the CR0 standard error of the slope on the data themselves.
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
        return slope, stderr

    slope, stderr = slopes(np.ones((1, n_clusters)))
    draws = []
    for start in range(0, n_resamples, RESAMPLES_AT_ONCE):
        size = min(RESAMPLES_AT_ONCE, n_resamples - start)
        weights = rng.multinomial(n_clusters, np.full(n_clusters, 1.0 / n_clusters), size=size).astype(float)
        again, again_stderr = slopes(weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            draws.append((again - slope) / again_stderr)
    t = np.concatenate(draws)
    t = t[np.isfinite(t)]
    if len(t) < n_resamples / 2:
        return np.nan, np.nan, float(stderr[0])
    low, high = np.quantile(t, probabilities)
    return float(low), float(high), float(stderr[0])
