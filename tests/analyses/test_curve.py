"""Variance along one parameter of an estimator."""

import math

import numpy as np
import pytest
from comparison_batches import assert_nested, correlated_batch, quietly, sized_batch

import gradstats as gs
from gradstats import estimators as est
from gradstats.analyses import registry
from gradstats.analyses.curve import variance_curve
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import short_table

VALUES = np.linspace(0.0, 2.0, 9)


@pytest.fixture(scope="module")
def curve():
    batch, scores = correlated_batch(100, 6)
    return variance_curve(batch, "length_weighted(loo=True)", "alpha", VALUES, scores)


def test_each_row_is_that_of_a_comparison(curve):
    batch, scores = correlated_batch(100, 6)
    frame = curve.to_frame()
    labels = [f"length_weighted(alpha={value:g}, loo=True)" for value in VALUES]
    assert list(frame["estimator"]) == labels
    assert list(frame["value"]) == list(VALUES)
    for at in (0, 3, 8):
        expected = quietly(gs.compare, batch, [labels[at]], scores).to_frame().iloc[0]
        alone = [name for name in expected.index if "simultaneous" not in name and frame[name].dtype.kind == "f"]
        assert {"trace_cov_low", "ratio_high", "matched_ratio", "cosine_low", "matched_bias_share"} <= set(alone)
        found = frame[alone].iloc[at].to_numpy(dtype=float)
        np.testing.assert_allclose(found, expected[alone].to_numpy(dtype=float), rtol=1e-12, atol=1e-14)


def test_simultaneous_bands_contain_the_pointwise_ones(curve):
    frame = curve.to_frame(0.9)
    assert_nested(frame, "ratio", "matched_ratio", "cosine", "matched_bias_share")
    # But where few prompts carry the tail of the ratio, whose end is then that of lognormal influences.
    assert (frame["ratio_simultaneous_high"] > frame["ratio_high"])[1:7].all()
    batch, scores = correlated_batch(100, 6)
    wide = variance_curve(batch, "length_weighted(loo=True)", "alpha", np.linspace(-3.0, 2.0, 11), scores)
    cost = wide.fits_frame()["ratio_to_lowest"].max() - 1.0
    assert cost > 0.01
    assert wide.sentence().endswith(f"; a fitted α takes up to {math.ceil(1000 * cost) / 10:.1f}% more samples.")


def test_the_minimiser_and_the_fits(curve):
    low, high = curve.confidence_interval()
    assert low <= curve.minimiser <= high
    frame = curve.to_frame()
    assert frame.attrs["minimiser"] == curve.minimiser
    assert frame.attrs["parameter"] == "alpha"
    fits = curve.fits_frame().set_index("fit")
    assert list(fits.index) == ["pooled", "within prompts", "of the mean"]
    batch, scores = correlated_batch(100, 6)
    norms = (scores**2).sum(axis=1)
    for name, method in {"pooled": "ols", "within prompts": "within_prompt", "of the mean": "gamma"}.items():
        expected = gs.fit_length_scaling(lengths=batch.lengths, sq_norms=norms, groups=batch.groups, method=method)
        assert fits.loc[name, "value"] == pytest.approx(expected.alpha, rel=1e-12)
    # Plugging an exponent in costs what the curve says, here by a comparison at that exponent.
    alpha = fits.loc["pooled", "value"]
    pair = [est.length_weighted(alpha=one, loo=True) for one in (alpha, curve.minimiser)]
    there, best = quietly(gs.compare, batch, pair, scores).to_frame()["trace_cov"]
    assert fits.loc["pooled", "ratio_to_lowest"] == pytest.approx(there / best, rel=1e-3)
    assert f"{curve.minimiser:.3g}" in curve.sentence()


def test_a_sentence_says_where_the_interval_is_cut():
    batch, scores = correlated_batch(12, 6)
    found = variance_curve(batch, "length_weighted(loo=True)", "alpha", np.linspace(-0.1, 0.1, 5), scores)
    low, high = found.confidence_interval()
    assert (low, high) == (-0.1, 0.1)
    assert f"alpha = {found.minimiser:.2g} [≤ −0.1, ≥ 0.1]" in found.sentence()
    cut = [note for note in found.notes if "the 95% interval of alpha is cut" in note]
    assert [("-0.1, the first" in note, "0.1, the last" in note) for note in cut] == [(True, False), (False, True)]


def test_an_exact_curve_is_followed():
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=4, n_prompts=5, rng=1)
    batch, scores, _ = policy.sample(400, 3, rng=0)
    found = variance_curve(batch, "asymmetric(loo=True)", "delta", np.linspace(-1, 1, 5), scores)
    exact = [policy.moments(est.asymmetric(delta=value, loo=True), 3).trace_cov for value in found.values]
    frame = found.to_frame(0.999)
    assert (frame["trace_cov_low"] < exact).all()
    assert (exact < frame["trace_cov_high"]).all()
    quadratic, slope, _ = np.polyfit(found.values, exact, 2)  # the variance is a parabola in δ
    low, high = found.confidence_interval(0.999)
    assert low < -slope / (2.0 * quadratic) < high


@pytest.mark.parametrize(
    ("label", "parameter", "values"),
    [
        ("kimi(loo=True)", "tau", [0.5, 1.0, 2.0, 4.0, 8.0]),
        ("asymmetric", "delta", [-0.2, -0.1, 0.0]),
        ("grpo", "eps", [1e-6, 0.1]),
        ("recipe:dr_grpo", "max_tokens", [10, 20]),
    ],
)
def test_parameters_of_other_estimators_and_recipes(label, parameter, values):
    batch, scores = correlated_batch(40, 4)
    found = variance_curve(batch, label, parameter, values, scores + 2.0 * batch.rewards[:, None])
    frame = found.to_frame()
    expected = quietly(gs.compare, batch, list(frame["estimator"]), scores + 2.0 * batch.rewards[:, None]).to_frame()
    np.testing.assert_allclose(frame["trace_cov"], expected["trace_cov"], rtol=1e-12)
    assert found.fits == {}


def test_the_width_of_a_clip():
    small = {"vocabulary": 3, "max_length": 3, "dimension": 4, "n_prompts": 5, "rng": 0}
    off_policy = EnumeratedPolicy(**small, theta=np.full(4, 0.6), old_theta=np.full(4, 0.4))
    batch, _, scores = off_policy.sample(80, 4, rng=0)
    narrow, wide = variance_curve(batch, "recipe:grpo", "clip_width", [0.02, 0.2], scores).to_frame()["trace_cov"]
    expected = quietly(gs.compare, batch, ["recipe:grpo(eps_low=0.2, eps_high=0.2)"], scores).to_frame()["trace_cov"]
    assert wide == pytest.approx(expected.item(), rel=1e-12)
    assert narrow != wide
    batch, _, scores = EnumeratedPolicy(**small).sample(80, 4, rng=0)  # no ratio reaches the clip
    found = variance_curve(batch, "recipe:dr_grpo", "clip_width", [0.1, 0.2, 0.3], scores)
    assert np.isnan(found.minimiser)
    assert found.sentence() == "The variance of recipe:dr_grpo does not depend on clip_width on these completions."


def test_group_size_is_compared_at_an_equal_total_of_completions():
    batch, scores = sized_batch(40, 8)
    found = variance_curve(batch, "rloo", "group_size", [2, 4, 8], scores)
    frame = found.to_frame()
    expected = quietly(gs.compare, batch, ["rloo"], scores, group_size=[2, 4, 8]).to_frame()
    np.testing.assert_allclose(frame["trace_cov"], expected["trace_cov"], rtol=1e-12)
    total = frame["trace_cov"] * frame["value"]
    assert found.minimiser == [2, 4, 8][int(np.argmin(total))]
    assert set(found.confidence_interval()) <= {2.0, 4.0, 8.0}
    np.testing.assert_allclose(frame["per_completion"], total / total.iloc[-1])
    assert (frame["per_completion_low"] < frame["per_completion"])[:2].all()
    short = short_table(registry.get("curve"), frame)  # every row of the reference beside itself is 1
    assert short.headings[0] == "noise at equal completions"
    assert short.rows[-1].cells[0] == "1" != short.rows[0].cells[0]


@pytest.mark.parametrize(
    ("label", "parameter", "values", "error", "message"),
    [
        ("length_weighted", "alpha", [1.0, 1.0], ValueError, "at least two different finite numbers"),
        ("length_weighted", "delta", [0.0, 1.0], TypeError, "has no parameter 'delta'"),
        ("rloo", "group_size", [2, 2.5], ValueError, r"group_size=2\.5 must be a whole number"),
        ("kimi", "tau", [-1.0, 1.0], ValueError, "tau must be a finite number above 0"),
    ],
)
def test_refusals(label, parameter, values, error, message):
    with pytest.raises(error, match=message):
        variance_curve(sized_batch()[0], label, parameter, values, sized_batch()[1])
    with pytest.raises(ValueError, match="a curve along alpha has one group size"):
        variance_curve(sized_batch()[0], "length_weighted", "alpha", [0, 1], sized_batch()[1], group_size=[2, 4])
