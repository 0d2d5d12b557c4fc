"""The length exponent: published points, textbook intervals, errors."""

from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from gradstats import data
from gradstats.stats import fit_length_scaling

POINTS = data.load("gloeckle2026")


def published():
    return fit_length_scaling(lengths=POINTS["length"], sq_norms=POINTS["sq_norm"])


def synthetic(n_prompts, per_prompt, alpha=0.8, prompt_sd=0.6, seed=0, heteroscedastic=False):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), per_prompt)
    centre = rng.normal(4.5, 0.6, n_prompts)
    lengths = np.ceil(np.exp(centre[groups] + rng.normal(0, 0.4, len(groups))))
    noise = rng.normal(0, prompt_sd, n_prompts)[groups] + rng.normal(0, 0.7, len(groups))
    if heteroscedastic:
        noise = noise * (0.4 + 0.6 * np.abs(np.log(lengths) - 4.5))
    return lengths, np.exp(2.0 + 2.0 * alpha * np.log(lengths) + noise), groups


def test_published_points():
    fit = published()
    assert fit.alpha == pytest.approx(0.7887, abs=5e-5)
    assert fit.slope == pytest.approx(2 * fit.alpha)
    assert fit.alpha_stderr == pytest.approx(0.153, abs=5e-4)
    assert fit.r_squared == pytest.approx(0.50, abs=5e-3)
    assert (fit.n, fit.n_prompts, fit.interval) == (29, 29, "t")
    low, high = fit.confidence_interval(0.95)
    assert (low, high) == (pytest.approx(0.475, abs=5e-4), pytest.approx(1.102, abs=5e-4))


def test_published_points_without_the_largest_residual():
    fit = published()
    residual = np.log(POINTS["sq_norm"]) - fit.intercept - fit.slope * np.log(POINTS["length"])
    rest = POINTS.drop(residual.abs().idxmax())
    assert fit_length_scaling(lengths=rest["length"], sq_norms=rest["sq_norm"]).alpha == pytest.approx(0.707, abs=5e-4)


def test_equals_scipy_and_statsmodels():
    lengths, sq_norms, _ = synthetic(60, 1, heteroscedastic=True)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms)
    oracle = stats.linregress(np.log(lengths), np.log(sq_norms))
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    assert fit.slope_stderr == pytest.approx(oracle.stderr, rel=1e-10)
    assert fit.intercept == pytest.approx(oracle.intercept, rel=1e-10)
    assert fit.r_squared == pytest.approx(oracle.rvalue**2, rel=1e-10)
    robust = sm.OLS(np.log(sq_norms), sm.add_constant(np.log(lengths))).fit(cov_type="HC3", use_t=True)
    np.testing.assert_allclose(fit.confidence_interval(0.9, "hc3"), robust.conf_int(0.1)[1] / 2, rtol=1e-10)


def test_predicted_band_equals_statsmodels():
    lengths, sq_norms, _ = synthetic(60, 1)
    at = np.array([20.0, 90.0, 700.0])
    frame = fit_length_scaling(lengths=lengths, sq_norms=sq_norms).predict(at, 0.8)
    model = sm.OLS(np.log(sq_norms), sm.add_constant(np.log(lengths))).fit()
    expected = model.get_prediction(sm.add_constant(np.log(at))).summary_frame(alpha=0.2)
    np.testing.assert_allclose(np.log(frame["sq_norm"]), expected["mean"], rtol=1e-9)
    np.testing.assert_allclose(np.log(frame["sq_norm_low"]), expected["mean_ci_lower"], rtol=1e-9)
    np.testing.assert_allclose(np.log(frame["sq_norm_high"]), expected["mean_ci_upper"], rtol=1e-9)


def test_repeated_prompts_are_clustered_by_default():
    lengths, sq_norms, groups = synthetic(40, 6)
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


def test_takes_a_measurement():
    lengths, sq_norms, groups = synthetic(10, 3)
    rollouts = SimpleNamespace(prompt_id=np.array([f"p{g}" for g in groups]))
    measured = SimpleNamespace(lengths=lengths, sq_norms=sq_norms, rollouts=rollouts)
    by_hand = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
    assert fit_length_scaling(measured).alpha == by_hand.alpha
    assert fit_length_scaling(measured).confidence_interval() == by_hand.confidence_interval()
    with pytest.raises(TypeError, match="either measured or the arrays"):
        fit_length_scaling(measured, groups=groups)


def test_order_labels_and_units_change_only_what_they_should():
    lengths, sq_norms, groups = synthetic(12, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
    order = np.random.default_rng(0).permutation(len(lengths))
    shuffled = fit_length_scaling(
        lengths=lengths[order], sq_norms=7.0 * sq_norms[order], groups=[f"q{99 - g}" for g in groups[order]]
    )
    assert shuffled.alpha == pytest.approx(fit.alpha, rel=1e-10)
    assert shuffled.alpha_stderr == pytest.approx(fit.alpha_stderr, rel=1e-10)
    assert shuffled.intercept == pytest.approx(fit.intercept + np.log(7.0), rel=1e-10)


def test_frame_has_the_interval():
    frame = published().to_frame(0.9)
    assert len(frame) == 1
    assert tuple(frame[["alpha_low", "alpha_high"]].iloc[0]) == published().confidence_interval(0.9)
    assert frame["confidence_level"].item() == 0.9


def test_norms_that_do_not_vary_have_no_r_squared():
    fit = fit_length_scaling(lengths=[10, 20, 30, 40], sq_norms=[2.0] * 4)
    assert fit.alpha == 0.0
    assert np.isnan(fit.r_squared)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "both lengths= and sq_norms="),
        ({"lengths": [1, 2, 3]}, TypeError, "both lengths= and sq_norms="),
        ({"lengths": [5, 5, 9, 9], "sq_norms": [1, 2, 3, 4]}, ValueError, "2 distinct value.* at least 3"),
        (
            {"lengths": [1, 2, 3], "sq_norms": [1, 0, 3]},
            ValueError,
            "sq_norms must be finite and positive.*position 1",
        ),
        (
            {"lengths": [1, 2, 3], "sq_norms": [1, 2, np.nan]},
            ValueError,
            "sq_norms must be finite.*first is nan",
        ),
        ({"lengths": [0, 2, 3], "sq_norms": [1, 2, 3]}, ValueError, "lengths must be finite and positive"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 2]}, ValueError, "one entry a sequence, got 3, 2, 3 and 3"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 2, 3], "groups": [1, 1]}, ValueError, "got 3, 3, 2 and 3"),
        ({"lengths": [[1, 2, 3]], "sq_norms": [1, 2, 3]}, ValueError, r"one-dimensional.*shape \(1, 3\)"),
        ({"lengths": [1, 2, 3], "sq_norms": [1, 2, 3], "method": "lasso"}, ValueError, "method='lasso'.*ols"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        fit_length_scaling(**arguments)


def test_bad_interval_requests():
    fit = published()
    with pytest.raises(
        ValueError, match="method='normal' is not available here for a fit by 'ols': choose from t, hc3"
    ):
        fit.confidence_interval(method="normal")
    with pytest.raises(ValueError, match="confidence_level=95 must lie between 0 and 1"):
        fit.confidence_interval(95.0)
    with pytest.raises(ValueError, match=r"method='bootstrap' is not available here.*choose from t, hc3, cluster"):
        fit.predict([10.0], method="bootstrap")
    with pytest.raises(ValueError, match="lengths must be positive"):
        fit.predict([0.0])


def test_too_few_prompts_to_cluster_is_nan_with_a_reason():
    with pytest.warns(UserWarning, match=r"answer 2 prompt\(s\), too few.*measure more prompts"):
        fit = fit_length_scaling(lengths=[5, 9, 12, 30], sq_norms=[1, 2, 3, 9], groups=["a", "a", "b", "b"])
    assert np.isnan(fit.alpha_stderr)
    assert np.all(np.isfinite(fit.confidence_interval(method="t")))


def test_within_prompt_is_the_fixed_effects_regression():
    lengths, sq_norms, groups = synthetic(15, 4)
    groups[:3] = [100, 101, 102]  # three prompts lose a completion to prompts of their own, which say nothing
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="within_prompt")
    dummies = (groups[:, None] == np.unique(groups)).astype(float)
    oracle = sm.OLS(np.log(sq_norms), np.column_stack([np.log(lengths), dummies])).fit()
    assert fit.slope == pytest.approx(oracle.params[0], rel=1e-10)
    np.testing.assert_allclose(fit.confidence_interval(method="t"), oracle.conf_int()[0] / 2, rtol=1e-8)
    assert fit.interval == "cluster"


def test_between_prompt_is_the_regression_of_means():
    lengths, sq_norms, groups = synthetic(15, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="between_prompt")
    x, y = (np.log(v).reshape(15, 4).mean(axis=1) for v in (lengths, sq_norms))
    oracle = stats.linregress(x, y)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    expected = oracle.slope / 2 + np.array([-1, 1]) * oracle.stderr / 2 * stats.t.ppf(0.975, 13)
    np.testing.assert_allclose(fit.confidence_interval(method="t"), expected, rtol=1e-10)
    assert fit.interval == "cluster"
    alone = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="between_prompt")
    assert alone.interval == "t"


def test_within_and_between_part_ways_when_prompts_differ():
    """Here a longer answer to the same prompt does not grow the norm at all, and harder prompts do."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    centre = rng.normal(4.5, 0.8, 60)[groups]
    lengths = np.ceil(np.exp(centre + rng.normal(0, 0.5, 300)))
    sq_norms = np.exp(2.0 * centre + rng.normal(0, 0.3, 300))
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    within = fit_length_scaling(**keywords, method="within_prompt").confidence_interval()
    between = fit_length_scaling(**keywords, method="between_prompt").confidence_interval()
    assert within[0] < 0.0 < within[1]
    assert between[0] > 0.7


def test_theil_sen_equals_scipy():
    lengths, sq_norms, groups = synthetic(40, 1)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="theil_sen")
    oracle = stats.theilslopes(np.log(sq_norms), np.log(lengths), alpha=0.9)
    assert fit.slope == pytest.approx(oracle.slope, rel=1e-10)
    assert fit.interval == "cluster"
    expected = (oracle.low_slope / 2, oracle.high_slope / 2)
    np.testing.assert_allclose(fit.confidence_interval(0.9, "rank"), expected, rtol=1e-10)
    np.testing.assert_allclose(np.diff(fit.confidence_interval(0.9, "cluster")), np.diff(expected), rtol=0.35)
    sq_norms[3] *= 1e9
    assert fit_length_scaling(lengths=lengths, sq_norms=sq_norms, method="theil_sen").alpha == pytest.approx(
        fit.alpha, abs=0.1
    )
    assert fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups // 2, method="theil_sen").interval == (
        "cluster"
    )


def test_ppml_equals_statsmodels():
    lengths, sq_norms, groups = synthetic(40, 3)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method="ppml")
    model = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=sm.families.Poisson()).fit(tol=1e-13)
    assert fit.slope == pytest.approx(model.params[1], rel=1e-6)
    assert fit.intercept == pytest.approx(model.params[0], rel=1e-6)
    assert fit.interval == "cluster"
    clustered = sm.GLM(sq_norms, sm.add_constant(np.log(lengths)), family=sm.families.Poisson()).fit(
        cov_type="cluster", cov_kwds={"groups": groups}
    )
    assert fit.slope_stderr == pytest.approx(clustered.bse[1], rel=0.15)


def test_ppml_describes_the_mean_where_logs_do_not():
    """Noise that grows with length moves E[log] and E apart: only ppml follows E[‖S‖² | T]."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(np.exp(rng.uniform(2, 6, 20000)))
    sd = 0.3 * np.log(lengths)
    sq_norms = lengths**1.6 * np.exp(sd * rng.normal(size=20000) - sd**2 / 2)
    keywords = {"lengths": lengths, "sq_norms": sq_norms}
    assert fit_length_scaling(**keywords, method="ppml").alpha == pytest.approx(0.8, abs=0.08)
    assert fit_length_scaling(**keywords).alpha < 0.7


@pytest.mark.parametrize("method", ["ols", "theil_sen", "ppml", "within_prompt", "between_prompt"])
def test_every_method_finds_the_exponent_and_draws_a_band(method):
    lengths, sq_norms, groups = synthetic(150, 4)
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, method=method)
    low, high = fit.confidence_interval(0.99)
    assert low < 0.8 < high
    assert high - low < 0.5
    band = fit.predict([30.0, 100.0, 300.0])
    assert (band["sq_norm_low"] <= band["sq_norm"]).all()
    assert (band["sq_norm"] <= band["sq_norm_high"]).all()


def test_methods_refuse_data_they_cannot_use():
    with pytest.raises(ValueError, match="within_prompt' needs prompts with completions of different lengths"):
        fit_length_scaling(lengths=[1, 2, 3], sq_norms=[1, 2, 3], method="within_prompt")
    many = np.arange(1.0, 5002.0)
    with pytest.raises(ValueError, match="takes at most 5000 sequences, got 5001"):
        fit_length_scaling(lengths=many, sq_norms=many, method="theil_sen")
    with pytest.raises(ValueError, match="method='t' is not available here for a fit by 'ppml'"):
        fit_length_scaling(lengths=[1, 2, 3], sq_norms=[1, 2, 3], method="ppml").confidence_interval(method="t")


def test_truncated_completions_are_counted_and_can_be_left_out():
    lengths, sq_norms, groups = synthetic(20, 3)
    cut = np.arange(60) % 7 == 0
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups, truncated=cut)
    assert fit.n_truncated == 9
    rest = fit_length_scaling(lengths=lengths[~cut], sq_norms=sq_norms[~cut], groups=groups[~cut])
    assert fit.without_truncated().alpha == rest.alpha
    assert fit.without_truncated().n_truncated == 0
    assert fit.to_frame()["n_truncated"].item() == 9
