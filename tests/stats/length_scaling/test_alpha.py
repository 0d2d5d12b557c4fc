"""The length exponent: published points, textbook intervals, errors."""

from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm
from power_laws import noisy_power_law
from scipy import stats

from gradstats import data
from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.alpha import METHODS

POINTS = data.load("gloeckle2026")


THREE, MANY = {"lengths": [1, 2, 3], "sq_norms": [1, 2, 3]}, np.arange(1.0, 5002.0)


def published():
    return fit_length_scaling(lengths=POINTS["length"], sq_norms=POINTS["sq_norm"])


def test_published_points():
    fit = published()
    assert fit.alpha == pytest.approx(0.7887, abs=5e-5)
    assert fit.slope == pytest.approx(2 * fit.alpha)
    assert fit.standard_error("t") == pytest.approx(0.153, abs=5e-4)
    assert fit.r_squared == pytest.approx(0.50, abs=5e-3)
    assert (fit.n, fit.n_prompts, fit.interval) == (29, 29, "cluster")
    low, high = fit.confidence_interval(0.95, "t")
    assert (low, high) == (pytest.approx(0.475, abs=5e-4), pytest.approx(1.102, abs=5e-4))


def test_equals_scipy_and_statsmodels():
    lengths, sq_norms, _ = noisy_power_law(60, 1, heteroscedastic=True)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms)
    oracle = stats.linregress(np.log(lengths), np.log(sq_norms))
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    assert 2 * fit.standard_error("t") == pytest.approx(oracle.stderr, rel=1e-10)
    assert fit.intercept == pytest.approx(oracle.intercept, rel=1e-10)
    assert fit.r_squared == pytest.approx(oracle.rvalue**2, rel=1e-10)
    alone = sm.OLS(np.log(sq_norms), sm.add_constant(np.log(lengths))).fit(cov_type="HC2")
    assert fit.slope_stderr == pytest.approx(alone.bse[1], rel=1e-10)
    robust = sm.OLS(np.log(sq_norms), sm.add_constant(np.log(lengths))).fit(cov_type="HC3", use_t=True)
    np.testing.assert_allclose(fit.confidence_interval(0.9, "hc3"), robust.conf_int(0.1)[1] / 2, rtol=1e-10)


def test_predicted_band_equals_statsmodels():
    lengths, sq_norms, _ = noisy_power_law(60, 1)
    at = np.array([20.0, 90.0, 700.0])
    frame = fit_length_scaling(lengths=lengths, sq_norms=sq_norms).predict(at, 0.8, "t")
    model = sm.OLS(np.log(sq_norms), sm.add_constant(np.log(lengths))).fit()
    expected = model.get_prediction(sm.add_constant(np.log(at))).summary_frame(alpha=0.2)
    found = np.log(frame[["sq_norm", "sq_norm_low", "sq_norm_high"]])
    np.testing.assert_allclose(found, expected[["mean", "mean_ci_lower", "mean_ci_upper"]], rtol=1e-9)


def test_repeated_prompts_are_clustered_by_default():
    lengths, sq_norms, groups = noisy_power_law(40, 6)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=[f"p{g}" for g in groups])
    assert (fit.interval, fit.n_prompts) == ("cluster", 40)
    assert fit.confidence_interval() == fit.confidence_interval(0.95, "cluster")
    clustered = np.diff(fit.confidence_interval())[0]
    independent = np.diff(fit.confidence_interval(method="t"))[0]
    assert clustered > 1.1 * independent
    bootstrap = np.diff(fit.confidence_interval(method="bootstrap", rng=1))[0]
    assert bootstrap == pytest.approx(clustered, rel=0.2)


def test_bootstrap_is_reproducible_and_takes_a_generator():
    fit = published()
    five = fit.confidence_interval(method="bootstrap", rng=5)
    assert fit.confidence_interval(method="bootstrap", rng=5) == five
    assert fit.confidence_interval(method="bootstrap", rng=6) != five
    low, high = fit.confidence_interval(method="bootstrap", rng=np.random.default_rng(0), n_resamples=400)
    assert low < fit.alpha < high


def test_takes_a_measurement_without_its_completions_that_count_no_token():
    lengths, norms = np.array([3, 0, 9, 27, 0, 81]), np.array([2.0, 0.0, 4.0, 9.0, 0.0, 15.0])
    rollouts = SimpleNamespace(prompt_id=np.array([*"aabbcc"]), truncated=np.array([0, 1, 1, 0, 1, 0]) == 1)
    measured, counted = SimpleNamespace(lengths=lengths, sq_norms=norms, rollouts=rollouts), lengths > 0
    fit = fit_length_scaling(measured)
    expected = fit_length_scaling(lengths=lengths[counted], sq_norms=norms[counted], groups=[*"abbc"])
    assert (fit.alpha, fit.n, fit.n_truncated) == (expected.alpha, 4, 1)
    assert fit.confidence_interval() == expected.confidence_interval()
    with pytest.raises(TypeError, match="either measured or the arrays"):
        fit_length_scaling(measured, groups=[*"aabbcc"])


def test_norms_that_do_not_vary_have_no_r_squared():
    fit = fit_length_scaling(lengths=[10, 20, 30, 40], sq_norms=[2.0] * 4)
    assert fit.alpha == pytest.approx(0.0, abs=1e-15)
    assert np.isnan(fit.r_squared)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "both lengths= and sq_norms="),
        ({"lengths": [1, 2, 3]}, TypeError, "both lengths= and sq_norms="),
        ({"lengths": [5, 5, 9, 9], "sq_norms": [1, 2, 3, 4]}, ValueError, "2 distinct value.* at least 3"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 0, 3]}, ValueError, "sq_norms must be finite and positive.*position 1"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 2, np.nan]}, ValueError, "sq_norms must be finite.*first is nan"),
        ({"lengths": [0, 2, 3], "sq_norms": [1, 2, 3]}, ValueError, "lengths must be finite and positive"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 2]}, ValueError, "one entry per sequence, got 3, 2, 3 and 3"),
        ({**THREE, "groups": [1, 1]}, ValueError, "got 3, 3, 2 and 3"),
        ({"lengths": [[1, 2, 3]], "sq_norms": [1, 2, 3]}, ValueError, r"one-dimensional.*shape \(1, 3\)"),
        ({**THREE, "method": "lasso"}, ValueError, "method='lasso'.*ols"),
        (
            {**THREE, "method": "within_prompt"},
            ValueError,
            "within_prompt' needs prompts with completions of different",
        ),
        ({"lengths": MANY, "sq_norms": MANY, "method": "theil_sen"}, ValueError, "at most 5000 sequences, got 5001"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        fit_length_scaling(**arguments)


def test_bad_interval_requests():
    fit = published()
    for message, call in (
        ("method='normal' is not available here for a fit by 'ols': choose from t, hc3", {"method": "normal"}),
        ("confidence_level=95 must lie between 0 and 1", {"confidence_level": 95.0}),
    ):
        with pytest.raises(ValueError, match=message):
            fit.confidence_interval(**call)
    with pytest.raises(ValueError, match=r"method='bootstrap' is not available here.*choose from t, hc3, cluster"):
        fit.predict([10.0], method="bootstrap")
    with pytest.raises(ValueError, match="lengths must be positive"):
        fit.predict([0.0])
    with pytest.raises(ValueError, match="method='t' is not available here for a fit by 'ppml'"):
        fit_length_scaling(**THREE, method="ppml").confidence_interval(method="t")


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_finds_the_exponent_and_draws_a_band(method):
    lengths, sq_norms, groups = noisy_power_law(150, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    low, high = fit.confidence_interval(0.99)
    assert low < 0.8 < high
    assert high - low < 0.5
    band = fit.predict([30.0, 100.0, 300.0])
    assert (band["sq_norm_low"] <= band["sq_norm"]).all()
    assert (band["sq_norm"] <= band["sq_norm_high"]).all()


def test_truncated_completions_are_counted_and_can_be_left_out():
    lengths, sq_norms, groups = noisy_power_law(20, 3)
    cut = np.arange(60) % 7 == 0
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, truncated=cut)
    assert fit.n_truncated == 9
    rest = fit_length_scaling(lengths=lengths[~cut], sq_norms=sq_norms[~cut], groups=groups[~cut])
    assert fit.without_truncated().alpha == rest.alpha
    assert fit.without_truncated().n_truncated == 0
    assert fit.to_frame()["n_truncated"].item() == 9
