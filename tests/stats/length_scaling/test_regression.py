"""Lines within and between prompts."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import dense_cr2, noisy_power_law
from scipy import stats
from scipy.linalg import block_diag, sqrtm

from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.regression import (
    bootstrap_t_quantiles,
    gamma_line,
    least_squares,
    poisson_line,
    pooled_line,
    r_squared,
    squared_correlation,
    theil_sen_line,
    variance_ratio,
)


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


FAMILIES = {"gamma": sm.families.Gamma(sm.families.links.Log()), "ppml": sm.families.Poisson()}


@pytest.mark.parametrize("method", FAMILIES)
def test_the_mean_line_equals_statsmodels(method):
    lengths, sq_norms, groups = noisy_power_law(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    model = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=FAMILIES[method]).fit(tol=1e-13)
    assert fit.slope == pytest.approx(model.params[1], rel=1e-6)
    assert fit.intercept == pytest.approx(model.params[0], rel=1e-6)
    assert fit.interval == "cluster"
    weight = model.mu ** (-0.5 if method == "ppml" else -1.0)  # the working regression, at its solution
    design = sm.add_constant(np.log(lengths)) * (model.mu * weight)[:, None]
    clustered = sm.OLS((sq_norms - model.mu) * weight, design).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert fit.slope_stderr == pytest.approx(clustered.bse[1], rel=0.15)


def test_the_gamma_scores_vanish():
    """Two lengths: the fitted means are the sample means, so that α is log(7/2)/(2·log 4) exactly."""
    line = gamma_line(np.log([10.0, 10.0, 40.0, 40.0]), np.log([1.0, 3.0, 4.0, 10.0]), np.arange(4))
    assert line.slope == pytest.approx(np.log(3.5) / np.log(4.0), rel=1e-9)
    assert line.intercept + line.slope * np.log(10.0) == pytest.approx(np.log(2.0), rel=1e-9)
    poisson = poisson_line(np.log([10.0, 10.0, 40.0, 40.0]), np.log([1.0, 3.0, 4.0, 10.0]), np.arange(4))
    assert poisson.slope == pytest.approx(line.slope, rel=1e-9)


def test_gamma_errors_are_those_of_relative_residuals():
    """CR2 of single rows is HC2: here of ‖S‖²/μ − 1 on (1, log T)."""
    lengths, sq_norms, _ = noisy_power_law(60, 1, heteroscedastic=True)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="gamma")
    mean = np.exp(fit.intercept + fit.slope * np.log(lengths))
    oracle = sm.OLS(sq_norms / mean - 1.0, sm.add_constant(np.log(lengths))).fit(cov_type="HC2")
    np.testing.assert_allclose(oracle.params, 0.0, atol=1e-9)
    assert fit.slope_stderr == pytest.approx(oracle.bse[1], rel=1e-8)


@pytest.mark.parametrize("scale", [1e-280, 1.0, 1e280])
@pytest.mark.parametrize("method", FAMILIES)
def test_the_unit_of_the_norms_does_not_matter(method, scale):
    lengths, sq_norms, groups = noisy_power_law(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=scale * sq_norms, groups=groups, method=method)
    reference = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    assert fit.alpha == pytest.approx(reference.alpha, rel=1e-9)
    assert fit.alpha_stderr == pytest.approx(reference.alpha_stderr, rel=1e-9)


def test_norms_without_an_answer_are_refused():
    lengths, sq_norms = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1e-300, 1e300, 1e-300, 1e300])
    with pytest.raises(ValueError, match="did not converge: look for squared norms that are far apart"):
        fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="ppml")


def test_of_least_squares_both_are_the_squared_correlation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = 1.0 + 2.0 * x + rng.normal(size=50)
    line = stats.linregress(x, y)
    fitted = line.intercept + line.slope * x
    found = r_squared(y - fitted, y - y.mean()), squared_correlation(y, fitted)
    assert found == pytest.approx((line.rvalue**2, line.rvalue**2))
    assert np.isnan(squared_correlation(np.ones(50), y))


def uneven():
    lengths, sq_norms, groups = noisy_power_law(25, 5)
    kept = np.random.default_rng(1).random(125) < 0.7
    groups = np.unique(groups[kept], return_inverse=True)[1]
    return lengths[kept], sq_norms[kept], groups


def test_gls_is_the_mixed_model_of_statsmodels_and_its_cr2_that_of_dense_matrices():
    lengths, sq_norms, groups = uneven()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="gls")
    ratio = variance_ratio(np.log(lengths), np.log(sq_norms), groups)
    oracle = sm.MixedLM(np.log(sq_norms), sm.add_constant(np.log(lengths)), groups).fit(reml=True, gtol=1e-9)
    assert (fit.intercept, fit.slope) == pytest.approx(oracle.params[:2], rel=1e-6)
    assert ratio == pytest.approx(oracle.cov_re[0, 0] / oracle.scale, rel=1e-4)
    # After whitening by the symmetric root of V⁻¹.
    covariance = block_diag(*[np.eye(size) + ratio for size in np.bincount(groups)])
    order = np.argsort(groups, kind="stable")
    design, y = sm.add_constant(np.log(lengths))[order], np.log(sq_norms)[order]
    assert 2 * fit.standard_error("t") == pytest.approx(sm.GLS(y, design, sigma=covariance).fit().bse[1], rel=1e-7)
    whiten = np.real(sqrtm(np.linalg.inv(covariance)))
    stderr, _ = dense_cr2(whiten @ design, whiten @ y, groups[order], np.array([0.0, 1.0]))
    assert fit.interval == "cluster"
    assert fit.slope_stderr == pytest.approx(stderr, rel=1e-7)


def test_without_repeated_prompts_or_shared_noise_it_is_ordinary_least_squares():
    lengths, sq_norms, groups = noisy_power_law(30, 1)
    alone = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="gls")
    assert alone.alpha == fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups).alpha
    lengths, sq_norms, groups = noisy_power_law(30, 4, prompt_sd=0.0, seed=2)
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    assert variance_ratio(np.log(lengths), np.log(sq_norms), groups) == 0.0
    shared = fit_length_scaling(**keywords, method="gls")
    assert shared.alpha == pytest.approx(fit_length_scaling(**keywords).alpha, rel=1e-12)
    assert variance_ratio(np.log(lengths), 1.6 * np.log(lengths), groups) == 0.0


RNG = np.random.default_rng(3)
N = 40
DESIGN = np.column_stack([np.ones(N), RNG.normal(size=N), RNG.normal(size=N) ** 2])
RESPONSE = DESIGN @ [1.0, 2.0, -1.0] + RNG.normal(size=N) * (0.5 + DESIGN[:, 2])
CONTRASTS = np.array([[0.0, 1.0, 0.0], [1.0, 0.3, 2.0]])
CLUSTERS = RNG.integers(0, 9, N)
CLUSTERS = np.unique(CLUSTERS, return_inverse=True)[1]


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
        expected = dense_cr2(DESIGN, RESPONSE, CLUSTERS, contrast)
        assert (stderr[position], degrees[position]) == pytest.approx(expected, rel=1e-9)


def with_prompts_of_one_length():
    """Twelve prompts of four completions, three of which have one length, and three prompts of one completion."""
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    lengths[groups < 3] = 70.0
    kept = (groups < 12) | (np.arange(60) % 4 == 0)
    return lengths[kept], sq_norms[kept], groups[kept]


def test_errors_within_prompts_are_those_of_explicit_dummies():
    """Prompts of one length estimate the noise; the means that are subtracted have leverages of their own."""
    lengths, sq_norms, groups = with_prompts_of_one_length()
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    several = np.bincount(groups)[groups] > 1  # statsmodels divides by 1 - h = 0 where a dummy has one completion
    dummies = (groups[several, None] == np.arange(12)).astype(float)
    oracle = sm.OLS(np.log(sq_norms[several]), np.column_stack([np.log(lengths[several]), dummies]))
    for method, kind in (("t", "nonrobust"), ("hc3", "HC3")):
        expected = oracle.fit(cov_type=kind, use_t=True)
        assert fit.slope == pytest.approx(expected.params[0], rel=1e-10)
        assert 2 * fit.standard_error(method) == pytest.approx(expected.bse[0], rel=1e-9)
        np.testing.assert_allclose(fit.confidence_interval(method=method), expected.conf_int()[0] / 2, rtol=1e-8)
    design = np.column_stack([np.log(lengths), (groups[:, None] == np.arange(15)).astype(float)])
    expected = dense_cr2(design, np.log(sq_norms), groups, np.eye(16)[0])
    stderr, degrees = fit.line.regression.cr2(np.ones((1, 1)), fit.line.clusters)
    assert (stderr[0], degrees[0]) == pytest.approx(expected, rel=1e-9)
    kept = (groups < 5) | (groups > 11)
    few = {"lengths": lengths[kept], "sq_norms": sq_norms[kept], "groups": groups[kept]}
    with pytest.warns(UserWarning, match=r"answer 2 prompt\(s\), too few"):
        assert np.isnan(fit_length_scaling(**few, method="within_prompt").alpha_stderr)


def test_between_prompt_is_the_regression_of_means():
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="between_prompt")
    x, y = (np.log(v).reshape(15, 4).mean(axis=1) for v in (lengths, sq_norms))
    oracle = stats.linregress(x, y)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    expected = oracle.slope / 2 + np.array([-1, 1]) * oracle.stderr / 2 * stats.t.ppf(0.975, 13)
    np.testing.assert_allclose(fit.confidence_interval(method="t"), expected, rtol=1e-10)
    assert fit.interval == "cluster"
    for alike in ({"lengths": [2, 4, 8, 3], "groups": [0] * 4}, {"lengths": [2, 8, 4, 4], "groups": [0, 0, 1, 1]}):
        with pytest.raises(ValueError, match="needs prompts that differ in their mean log T.*measure more prompts"):
            fit_length_scaling(**alike, sq_norms=[1, 2, 3, 4], method="between_prompt")


def test_theil_sen_equals_scipy():
    lengths, sq_norms, groups = noisy_power_law(40, 1)
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "method": "theil_sen"}
    fit = fit_length_scaling(**keywords)
    oracle = stats.theilslopes(np.log(sq_norms), np.log(lengths), alpha=0.9)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    expected = (oracle.low_slope / 2, oracle.high_slope / 2)
    np.testing.assert_allclose(fit.confidence_interval(0.9, "rank"), expected, rtol=1e-10)
    np.testing.assert_allclose(np.diff(fit.confidence_interval(0.9, "cluster")), np.diff(expected), rtol=0.35)
    sq_norms[3] *= 1e9
    assert fit_length_scaling(**keywords).alpha == pytest.approx(fit.alpha, abs=0.1)
    assert fit_length_scaling(**keywords, groups=groups // 2).interval == fit.interval == "cluster"


def sixty_completions():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(4.5, 0.7, 60)).round() + 1
    return lengths, np.exp(1 + 1.4 * np.log(lengths) + rng.normal(0, 0.9, 60))


@pytest.mark.parametrize("n_prompts", [1, 2])
@pytest.mark.parametrize("method", ["ols", "theil_sen", "gamma", "ppml", "gls", "within_prompt"])
def test_no_interval_by_prompt_comes_from_one_or_two_prompts(method, n_prompts):
    lengths, sq_norms = sixty_completions()
    instead = (
        "use method='rank' if the completions are independent" if method == "theil_sen" else "measure more prompts"
    )
    with pytest.warns(UserWarning, match=rf"answer {n_prompts} prompt\(s\), too few.*{instead}"):
        fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=np.arange(60) % n_prompts, method=method)
    assert np.isnan(fit.alpha_stderr)
    for by in {"cluster", "bootstrap"} & set(fit.line.intervals):
        with pytest.warns(UserWarning, match="so the interval of alpha is NaN"):
            assert np.isnan(fit.confidence_interval(method=by)).all()
    for by in {"t", "hc3", "rank"} & set(fit.line.intervals):  # those for independent sequences
        assert np.isfinite(fit.confidence_interval(method=by)).all()


def test_signs_that_cancel_within_prompts_leave_no_error():
    """Every S_g is 0, and the interval by prompt would have no width."""
    line = theil_sen_line(np.arange(4.0), np.array([-2.0, -2.0, -1.0, 1.0]), np.array([0, 1, 2, 0]))
    with pytest.warns(UserWarning, match="too few to estimate how prompts differ"):
        assert np.isnan(line.slope_interval(0.95, "cluster", 0, np.random.default_rng(0))).all()
    exact = theil_sen_line(np.arange(4.0), 2.0 * np.arange(4.0), np.array([0, 1, 2, 0]))
    assert exact.slope_interval(0.95, "cluster", 0, np.random.default_rng(0)) == (2.0, 2.0)


@pytest.mark.parametrize("method", ["ols", "gamma", "ppml", "within_prompt", "between_prompt"])
def test_few_sequences_have_a_moderate_interval_or_none(method):
    """A resample or a point that leaves no residuals says nothing of the noise; it used to give widths of 1e13."""
    rng = np.random.default_rng(1)
    n_known = 0
    for n in (3, 4, 5, 6, 7) * 8:
        lengths = np.exp(rng.normal(4.0, 0.7, n)).round() + 1 + np.arange(n) / n
        sq_norms = np.exp(1 + 1.4 * np.log(lengths) + rng.normal(0, 0.9, n))
        for groups in (np.arange(n), np.arange(n) % 3, np.arange(n) % 2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                try:
                    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
                except ValueError:
                    continue
                for by in {"hc3", "bootstrap", "cluster"} & set(fit.line.intervals):
                    width = np.diff(fit.confidence_interval(method=by, n_resamples=500))[0]
                    assert np.isnan(width) or 0.0 < width < 3e3, (by, n, width)
                    n_known += np.isfinite(width)
    assert n_known > 20


def test_undetermined_resamples_are_counted_with_the_tails():
    """Of 5 points, 301 of 3,125 resamples hold at most two, through which a line goes: more than a tail of 2.5 %."""

    def quantiles(x, y, tails):
        return bootstrap_t_quantiles(x, y, np.arange(len(x)), tails, 2000, np.random.default_rng(0))

    x, y = np.arange(5.0), np.random.default_rng(0).normal(size=5)
    assert np.isnan(quantiles(x, y, (0.025, 0.975))[0])
    low, high, _ = quantiles(x, y, (0.15, 0.85))
    assert -20.0 < low < 0.0 < high < 20.0
    # A slope that most resamples do not determine.
    assert np.isnan(quantiles(np.zeros(2), np.array([0.0, 1.0]), (0.1, 0.9))[:2]).all()


def test_a_variance_of_less_than_one_degree_of_freedom_gives_no_interval():
    """Two points beside each other and one far off, through which the line goes: rounding decides about its noise."""
    line = pooled_line(np.array([0.0, 2.1914908585848764e-05, 1.53]), np.array([0.0, 1.0, 0.5]), np.arange(3))
    assert line.regression.cr2(np.array([[0.0, 1.0]]), line.clusters)[1][0] < 0.9
    assert np.isnan(line.slope_interval(0.95, "cluster", 0, np.random.default_rng(0))).all()


def test_what_leaves_no_residual_leaves_hc3_undefined():
    line = pooled_line(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 1.0]), np.arange(3))
    assert np.isnan(line.slope_stderr("hc3"))
    assert np.isfinite(line.slope_stderr("t"))
    design = np.column_stack([np.ones(5), np.array([0.0, 0.0, 0.0, 0.0, 1.0])])  # a point of full leverage
    assert np.isnan(least_squares(design, np.arange(5.0) ** 2).hc3(np.array([[0.0, 1.0]]))[0][0])
    with pytest.raises(ValueError, match="linearly dependent columns"):
        least_squares(np.ones((5, 2)), np.arange(5.0))


@pytest.mark.parametrize("groups", [[0.0, 0.0, np.nan, 1.0], ["a", "a", None, "b"], ["a", "a", np.nan, "b"]])
def test_a_missing_group_is_refused(groups):
    with pytest.raises(ValueError, match="groups .*None.*leave it out|groups has no label|groups holds"):
        fit_length_scaling(lengths=[3, 4, 5, 6], sq_norms=[1, 2, 3, 4], groups=groups)
