"""Equivalent group size, implied shift, length against reward, sample sizes."""

import warnings

import numpy as np
import pytest
from scipy import stats

from gradstats import data
from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.stats import (
    EquivalentGroupSize,
    compare,
    equivalent_group_size,
    fit_length_scaling,
    implied_shift,
    length_reward_correlation,
    plan_alpha,
)
from gradstats.stats.jackknife import Estimate


def make(n_prompts=200, size=16, seed=0, dim=8):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), size)
    n = len(groups)
    lengths = np.ceil(np.exp(rng.normal(3.5, 0.7, n))).astype(int)
    difficulty = rng.random(n_prompts)[groups]
    rewards = (rng.random(n) < np.clip(difficulty - 0.1 * (np.log(lengths) - 3.5), 0, 1)).astype(float)
    scores = rng.normal(size=(n, dim)) * np.sqrt(lengths)[:, None] + 0.5 * rng.normal(size=(n_prompts, dim))[groups]
    return Batch(rewards, lengths, groups), scores


def quietly(function, *arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments, **keywords)


def test_variance_components_equal_loops():
    batch, scores = make(n_prompts=12, size=8)
    result = quietly(compare, batch, ["rloo", "token_mean"], scores, group_size=4)
    frame = result.variance_components()
    for position, name in enumerate(["rloo", "token_mean"]):
        spreads = []
        for prompt in range(12):
            gradients = []
            for part in range(2):
                rows = np.arange(4) + 8 * prompt + 4 * part
                gradients.append(est.get(name).weights(batch.select(rows)) @ scores[rows])
            spreads.append(((np.array(gradients) - np.mean(gradients, axis=0)) ** 2).sum())
        assert frame["within_prompt"].iloc[position] == pytest.approx(np.mean(spreads), rel=1e-10)
        logs = np.log([(np.sum(spreads) - s) / 11 for s in spreads])
        margin = stats.t.ppf(0.975, 11) * np.sqrt(11 / 12 * ((logs - logs.mean()) ** 2).sum())
        assert frame["within_prompt_high"].iloc[position] == pytest.approx(np.mean(spreads) * np.exp(margin), rel=1e-8)
    total = frame["within_prompt"] + frame["between_prompt"]
    np.testing.assert_allclose(total, result.to_frame()["trace_cov"], rtol=1e-10)


def test_variance_components_need_two_groups_of_a_prompt():
    batch, scores = make(n_prompts=12, size=4)
    with pytest.raises(ValueError, match="every prompt has a single group.*at most half"):
        quietly(compare, batch, ["rloo"], scores).variance_components()


def test_rloo_is_equivalent_to_itself():
    batch, scores = make()
    result = equivalent_group_size(batch, "rloo", 4, scores)
    assert result.value == pytest.approx(4.0)
    np.testing.assert_allclose(result.confidence_interval(), [4.0, 4.0])
    assert result.n_prompts == 200


def test_own_sample_mean_is_worth_rloo_of_its_size():
    batch, scores = make()
    assert equivalent_group_size(batch, "group_mean", 4, scores).value == pytest.approx(4.0)


def test_pairs_follow_the_u_statistic():
    """N·w(N) = v1 + v2/(N−1): the size that groups of 8 predict for groups of 4 is 4."""
    batch, scores = make(n_prompts=1500)
    parts = {}
    for size in (2, 4, 8):
        frame = quietly(compare, batch, ["rloo"], scores, group_size=size).variance_components()
        parts[size] = size * frame["within_prompt"].item()
    price = (parts[2] - parts[8]) * 7 / 6
    assert 1 + price / (parts[4] - (parts[2] - price)) == pytest.approx(4.0, rel=0.15)


def test_a_nearly_perfect_baseline_is_worth_a_large_group():
    batch, scores = make()
    mean = np.bincount(batch.group_index, weights=batch.rewards)[batch.group_index] / 16
    centred = batch.with_fields(rewards=batch.rewards - mean)
    result = equivalent_group_size(centred, "reinforce", 4, scores)
    assert result.value == np.inf
    assert result.confidence_interval()[0] > 4


def test_the_upper_end_may_be_infinite_where_the_estimate_is_not():
    result = EquivalentGroupSize("mine", 4, Estimate(0.1, 0.08, "raw", 100.0), 101)
    assert result.value == pytest.approx(11.0)
    low, high = result.confidence_interval()
    assert 4 < low < 11
    assert high == np.inf
    assert result.to_frame()["equivalent_group_size_high"].item() == np.inf


def test_group_size_refusals():
    batch, scores = make(n_prompts=5, size=8)
    with pytest.raises(ValueError, match="group_size=2 must be at least 3"):
        equivalent_group_size(batch, "rloo", 2, scores)
    with pytest.raises(ValueError, match="only 0 prompts have the 10 completions"):
        equivalent_group_size(batch, "rloo", 5, scores)
    with pytest.raises(ValueError, match="is a batch-level estimator"):
        equivalent_group_size(batch, "batch_mean", 4, scores)
    with pytest.raises(ValueError, match="gives no completion any weight in groups of 2"):
        equivalent_group_size(batch.with_fields(rewards=np.ones(40)), "rloo", 4, scores)
    batch, scores = make()
    with pytest.warns(UserWarning, match=r"not a known multiple.*loo=True"):
        equivalent_group_size(batch, "token_mean", 4, scores)


def test_implied_shift_of_asymmetric_is_its_delta():
    batch, _ = make()
    for delta in (-0.1, 0.3):
        result = implied_shift(batch, est.asymmetric(delta=delta))
        assert result.delta.value == pytest.approx(delta)
        np.testing.assert_allclose(result.confidence_interval(), [delta, delta])
    assert implied_shift(batch, "rloo").delta.value == pytest.approx(0.0, abs=1e-12)


def test_implied_shift_of_a_length_weighted_baseline():
    batch, _ = make()
    result = implied_shift(batch, "length_weighted(alpha=0.8)")
    weights = batch.lengths**1.6
    shifts = []
    for prompt in range(200):
        rows = batch.group_index == prompt
        shifts.append(np.average(batch.rewards[rows], weights=weights[rows]) - batch.rewards[rows].mean())
    assert result.delta.value == pytest.approx(np.mean(shifts))
    expected = stats.t.interval(0.95, 199, loc=np.mean(shifts), scale=stats.sem(shifts))
    np.testing.assert_allclose(result.confidence_interval(), expected)
    assert result.delta.value < 0
    assert result.to_frame()["delta"].item() == result.delta.value


def test_implied_shift_refusals():
    batch, _ = make(n_prompts=2)
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        implied_shift(batch, "rloo")
    with pytest.raises(ValueError, match="does not subtract one baseline"):
        implied_shift(make()[0], "grpo")


def test_length_reward_correlation_is_within_prompts():
    batch, _ = make()
    result = length_reward_correlation(batch)
    x, y = batch.lengths.astype(float), batch.rewards.copy()
    for prompt in range(200):
        rows = batch.group_index == prompt
        x[rows] -= x[rows].mean()
        y[rows] -= y[rows].mean()
    assert result.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    low, high = result.confidence_interval()
    assert low < result.correlation < high < 0.05
    assert result.to_frame()["correlation_low"].item() == low
    moved = length_reward_correlation(lengths=3 * batch.lengths + 7, rewards=-batch.rewards, groups=batch.groups)
    assert moved.correlation == pytest.approx(-result.correlation)


def test_length_reward_correlation_without_variation_is_nan_with_a_reason():
    with pytest.warns(UserWarning, match=r"only 0 prompt\(s\) have completions that differ in both"):
        result = length_reward_correlation(lengths=[1, 2, 3, 4], rewards=[1, 1, 0, 0], groups=[0, 0, 1, 1])
    assert np.isnan(result.correlation)
    with pytest.raises(TypeError, match="give a measurement, or all of"):
        length_reward_correlation(lengths=[1])
    with pytest.raises(ValueError, match="got 2, 1 and 2"):
        length_reward_correlation(lengths=[1, 2], rewards=[1], groups=[0, 0])


def test_the_published_points_call_for_about_a_thousand_sequences():
    points = data.load("gloeckle2026")
    pilot = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    plan = plan_alpha(pilot, 0.05)
    assert 1000 <= plan.n <= 1100
    assert plan.n == plan.n_prompts
    assert plan_alpha(pilot, 0.1).n == pytest.approx(plan.n / 4, rel=0.02)
    assert plan.to_frame()["n"].item() == plan.n


def test_a_plan_is_kept():
    def points(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(4, 0.7, n)
        return {"lengths": np.exp(x), "sq_norms": np.exp(1.6 * x + rng.normal(0, 1.0, n))}

    plan = plan_alpha(fit_length_scaling(**points(400, 0)), 0.05)
    low, high = fit_length_scaling(**points(plan.n, 1)).confidence_interval()
    assert (high - low) / 2 == pytest.approx(0.05, rel=0.15)


def test_a_plan_from_noise_and_spread_of_lengths():
    """se(α) = σ/(2 s √n): 1.0/(2·0.5·√n)·1.96 ≤ 0.1 from n = 385 on."""
    plan = plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5)
    assert plan.n == plan.n_prompts == 387
    assert plan.pilot_n_prompts is None
    assert plan.sentence().startswith("α ± 0.1 (95% interval) takes 387 sequences of 387 prompts")
    assert plan_alpha(half_width=0.1, noise=2.0, length_spread=1.0).n == 387


def test_answers_are_sentences():
    batch, scores = make()
    told = equivalent_group_size(batch, "rloo", 4, scores).sentence()
    assert told.startswith("rloo at N = 4 is as noisy as rloo at N = 4 [4, 4], at the same total number of completions (95%")
    told = implied_shift(batch, est.asymmetric(delta=-0.1)).sentence(0.9)
    assert told.startswith("The baseline of asymmetric lies -0.1 [-0.1, -0.1] from the group mean")
    assert "90% interval, 200 prompts" in told
    assert length_reward_correlation(batch).sentence().startswith("Longer answers to a prompt are less often right")
    unrelated = batch.with_fields(rewards=np.random.default_rng(0).permutation(batch.rewards))
    assert length_reward_correlation(unrelated).sentence().startswith("No correlation of length and reward")


def test_plan_refusals():
    pilot = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 2, 4, 3])
    with pytest.raises(ValueError, match="half_width=0 must be positive"):
        plan_alpha(pilot, 0.0)
    exact = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 1, 1, 1])
    with pytest.raises(ValueError, match="the pilot has no standard error"):
        plan_alpha(exact, 0.05)
    with pytest.raises(TypeError, match="either a pilot fit, or both noise= and length_spread="):
        plan_alpha()
    with pytest.raises(TypeError, match="give both noise= and length_spread="):
        plan_alpha(noise=1.0)
    with pytest.raises(ValueError, match="noise=-1 must be positive, for example 1"):
        plan_alpha(noise=-1.0, length_spread=0.5)
