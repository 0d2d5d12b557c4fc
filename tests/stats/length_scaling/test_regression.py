"""Least squares and its covariances compared with dense textbook matrices and statsmodels."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.linalg import sqrtm

from gradstats.stats.length_scaling.regression import least_squares

RNG = np.random.default_rng(3)
N = 40
DESIGN = np.column_stack([np.ones(N), RNG.normal(size=N), RNG.normal(size=N) ** 2])
RESPONSE = DESIGN @ [1.0, 2.0, -1.0] + RNG.normal(size=N) * (0.5 + DESIGN[:, 2])
CONTRASTS = np.array([[0.0, 1.0, 0.0], [1.0, 0.3, 2.0]])
CLUSTERS = RNG.integers(0, 9, N)
CLUSTERS = np.unique(CLUSTERS, return_inverse=True)[1]


def dense_cr2(contrast):
    """CR2 variance and Satterthwaite degrees of freedom, from Bell and McCaffrey with n × n matrices."""
    bread = np.linalg.inv(DESIGN.T @ DESIGN)
    maker = np.eye(N) - DESIGN @ bread @ DESIGN.T
    residuals = maker @ RESPONSE
    variance, columns = 0.0, []
    for cluster in np.unique(CLUSTERS):
        rows = cluster == CLUSTERS
        adjust = np.linalg.inv(np.real(sqrtm(maker[np.ix_(rows, rows)])))
        weight = adjust @ DESIGN[rows] @ bread @ contrast
        variance += (weight @ residuals[rows]) ** 2
        columns.append(maker[:, rows] @ weight)
    values = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    return np.sqrt(variance), values.sum() ** 2 / (values**2).sum()


def test_coefficients_classical_and_hc3_equal_statsmodels():
    fit = least_squares(DESIGN, RESPONSE)
    oracle = sm.OLS(RESPONSE, DESIGN)
    np.testing.assert_allclose(fit.coefficients, oracle.fit().params, rtol=1e-10)
    for ours, kind in ((fit.classical, "nonrobust"), (fit.hc3, "HC3")):
        covariance = oracle.fit(cov_type=kind).cov_params()
        expected = np.sqrt(np.einsum("ck,kl,cl->c", CONTRASTS, covariance, CONTRASTS))
        stderr, degrees = ours(CONTRASTS)
        np.testing.assert_allclose(stderr, expected, rtol=1e-10)
        np.testing.assert_array_equal(degrees, N - 3)


def test_cr2_equals_dense_matrices():
    stderr, degrees = least_squares(DESIGN, RESPONSE).cr2(CONTRASTS, CLUSTERS)
    for position, contrast in enumerate(CONTRASTS):
        expected_stderr, expected_degrees = dense_cr2(contrast)
        assert stderr[position] == pytest.approx(expected_stderr, rel=1e-9)
        assert degrees[position] == pytest.approx(expected_degrees, rel=1e-9)


def test_cr2_of_single_rows_is_hc2():
    fit = least_squares(DESIGN, RESPONSE)
    covariance = sm.OLS(RESPONSE, DESIGN).fit(cov_type="HC2").cov_params()
    stderr, _ = fit.cr2(CONTRASTS, np.arange(N))
    expected = np.sqrt(np.einsum("ck,kl,cl->c", CONTRASTS, covariance, CONTRASTS))
    np.testing.assert_allclose(stderr, expected, rtol=1e-10)


def test_cr0_is_the_sandwich_of_sums_over_clusters():
    fit = least_squares(DESIGN, RESPONSE)
    sums = np.array([(DESIGN * fit.residuals[:, None])[g == CLUSTERS].sum(axis=0) for g in np.unique(CLUSTERS)])
    covariance = fit.bread @ sums.T @ sums @ fit.bread
    expected = np.sqrt(np.einsum("ck,kl,cl->c", CONTRASTS, covariance, CONTRASTS))
    np.testing.assert_allclose(fit.cr0(CONTRASTS, CLUSTERS), expected, rtol=1e-10)


def test_a_point_of_full_leverage_leaves_hc3_undefined():
    design = np.column_stack([np.ones(5), np.array([0.0, 0.0, 0.0, 0.0, 1.0])])
    stderr, _ = least_squares(design, np.arange(5.0) ** 2).hc3(np.array([[0.0, 1.0]]))
    assert np.isnan(stderr[0])


def test_absorbed_parameters_cost_degrees_of_freedom():
    absorbed = np.full(N, 5.0 / N)
    assert least_squares(DESIGN, RESPONSE, absorbed=absorbed).residual_df == N - 3 - 5


def test_dependent_columns_are_refused():
    with pytest.raises(ValueError, match="linearly dependent columns"):
        least_squares(np.ones((5, 2)), np.arange(5.0))
