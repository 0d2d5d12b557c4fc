"""The studentised cluster bootstrap against resamples fitted one by one."""

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law

from gradstats.stats.length_scaling.regression import bootstrap_t_quantiles, least_squares


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_quantiles_are_those_of_refitted_resamples(fit_intercept):
    lengths, sq_norms, clusters = noisy_power_law(8, 3)
    x, y = np.log(lengths), np.log(sq_norms)
    x, y = x - x.mean(), y - y.mean()

    def fit(rows, groups):
        design = sm.add_constant(x[rows]) if fit_intercept else x[rows][:, None]
        result = sm.OLS(y[rows], design).fit()
        # CR0: the sandwich without corrections for few clusters.
        bread = np.linalg.inv(design.T @ design)
        sums = np.array([(design[groups == g] * result.resid[groups == g, None]).sum(axis=0) for g in set(groups)])
        return result.params[-1], np.sqrt((bread @ sums.T @ sums @ bread)[-1, -1])

    slope, stderr = fit(np.arange(24), clusters)
    draws = np.random.default_rng(3).multinomial(8, np.full(8, 1 / 8), size=200)
    t = []
    for counts in draws:
        drawn = np.repeat(np.arange(8), counts)
        rows = np.concatenate([np.flatnonzero(clusters == cluster) for cluster in drawn])
        again, again_stderr = fit(rows, np.repeat(np.arange(8), 3))
        t.append((again - slope) / again_stderr)
    low, high, own_stderr = bootstrap_t_quantiles(
        x, y, clusters, (0.1, 0.9), 200, np.random.default_rng(3), fit_intercept
    )
    assert own_stderr == pytest.approx(stderr)
    design = np.column_stack([np.ones(24), x]) if fit_intercept else x[:, None]
    least = least_squares(design, y)
    assert least.cr0(np.eye(design.shape[1])[-1:], clusters)[0] == pytest.approx(own_stderr, rel=1e-9)
    np.testing.assert_allclose([low, high], np.quantile(t, [0.1, 0.9]), rtol=1e-8)


def test_a_slope_that_most_resamples_do_not_determine_is_nan():
    x, y = np.array([0.0, 0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0, 3.0])
    low, high, _ = bootstrap_t_quantiles(x[:2], y[:2], np.array([0, 1]), (0.1, 0.9), 50, np.random.default_rng(0))
    assert np.isnan(low)
    assert np.isnan(high)
