"""GRPO, pass@k, Kimi, MaxRL, James–Stein and REINFORCE++: by hand, in their limits and by enumeration."""

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.scaled import (
    divide_by_deviation,
    group_mean_scale,
    of_both_signs,
    standard_deviation,
    whiten,
)


def test_standard_deviations_of_two_groups_are_those_of_numpy():
    values, index = np.array([1.0, 5.0, 2.0, 4.0, 9.0]), np.array([0, 1, 0, 0, 1])
    for ddof in (0, 1):
        first, second = np.std([1, 2, 4], ddof=ddof), np.std([5, 9], ddof=ddof)
        assert_allclose(standard_deviation(values, index, 2, ddof), [first, second, first, first, second])
    assert_array_equal(np.isnan(standard_deviation(values, index, 2, 2)), index == 1)
    # digits survive a large common offset
    assert_allclose(standard_deviation(values + 1e9, index, 2, 1), standard_deviation(values, index, 2, 1))


def test_a_deviation_that_is_zero_or_undefined_gives_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="other is NaN for 2 completions: the standard deviation of their rewards"):
        quotient = divide_by_deviation(np.array([1.0, 1.0, 1.0]), np.array([2.0, 0.0, np.nan]), 0.0, "other")
    assert_array_equal(quotient, [0.5, np.nan, np.nan])


@pytest.mark.parametrize(
    ("label", "batch", "reason"),
    [
        ("grpo(eps=0)", Batch([1, 1], [1, 1], [0, 0]), "give eps > 0"),
        ("max_rl", Batch([1, -1], [1, 1], [0, 0]), "use rewards of at least 0"),
        ("reinforce_pp", Batch([1], [1], [0]), "one token has no variance"),
    ],
)
def test_degenerate_input_is_nan_with_a_reason(label, batch, reason):
    with pytest.warns(RuntimeWarning, match=reason):
        assert np.isnan(est.get(label).advantages(batch)).all()


def test_grpo_by_hand():
    batch = Batch([0, 1, 5], [1, 1, 1], ["a", "a", "b"])
    root = np.sqrt(0.5)
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5 / root, 0.5 / root, 0])
    assert_allclose(est.grpo(eps=0.5, ddof=0).advantages(batch), [-0.5, 0.5, 0])
    # with the mean of the others the standard deviation still includes every sample
    assert_allclose(est.grpo(eps=0, loo=True).advantages(batch), [-1 / root, 1 / root, 0])


def test_only_the_lead_of_the_single_best_counts_in_pass_at_k():
    best = Batch([-3, -1, -2, 1, 1, 0], [1] * 6, ["a"] * 3 + ["b"] * 3)
    assert_allclose(est.pass_at_k().advantages(best), [0, 1, 0, 0, 0, 0])
    batch = Batch([0, 1, 3], [1, 1, 1], ["a", "a", "a"])  # mean 4/3, squared deviations (16 + 1 + 25)/9
    for ddof in (0, 1):
        found = est.pass_at_k(normalize=True, ddof=ddof, eps=0).advantages(batch)
        assert_allclose(found, [0, 0, 2 / np.sqrt(42 / 9 / (3 - ddof))])


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_expected_gradients_of_other_objectives(n: int, p: float):
    # E[max R] = 1 − (1−p)^N has the derivative N(1−p)^{N−1}, and E[ĝ] is 1/N of it
    assert expected_gradient(est.pass_at_k().weights, p, n) == pytest.approx((1 - p) ** (n - 1))
    # Σ_{k=0}^{N−2} (1−p)^k; for N → ∞ it is 1/p, the derivative of log p
    assert expected_gradient(est.max_rl().weights, p, n) == pytest.approx(sum((1 - p) ** k for k in range(n - 1)))


def test_kimi_by_hand():
    batch = Batch([0, 1, 0, 1000], [1] * 4, ["a", "a", "b", "b"])
    soft = np.log((1 + np.e) / 2)
    # exp(1000) is not representable: the greatest reward leaves the logarithm first
    expected = [0 - soft, 1 - soft, -(1000 - np.log(2)), np.log(2)]
    assert_allclose(est.kimi(tau=1).advantages(batch), expected)
    # of two completions, the mean of the others is the other
    assert_allclose(est.kimi(tau=1, loo=True).advantages(batch), [-1, 1, -1000, 1000])
    three = Batch([0, 1, 3], [1] * 3, ["a"] * 3)
    others = 2 * np.log([(np.exp(0.5) + np.exp(1.5)) / 2, (1 + np.exp(1.5)) / 2, (1 + np.exp(0.5)) / 2])
    assert_allclose(est.kimi(tau=2, loo=True).advantages(three), [0, 1, 3] - others)


def test_max_rl_by_hand():
    batch = Batch([1, 0, 0, 0, 0, 0], [1] * 6, ["a", "a", "a", "a", "b", "b"])
    assert_allclose(est.max_rl().advantages(batch), [3, -1, -1, -1, 0, 0])
    # the mean of the others as baseline, the mean of all as divisor: N/(N−1) times as large
    assert_allclose(est.max_rl(loo=True).advantages(batch), [4, -4 / 3, -4 / 3, -4 / 3, 0, 0])
    assert_array_equal(group_mean_scale(batch), [0.25] * 4 + [np.inf] * 2)


def test_max_rl_advantages_are_bounded_but_where_signs_differ():
    rng = np.random.default_rng(0)
    rewards = np.array([[0, 0, 3, 1], [-2, -1, 0, 0], [-1, 1, 1, 0.5], [0, 0, 0, 0]], dtype=float)
    batch = Batch(rewards.ravel(), [1] * 16, np.repeat(np.arange(4), 4))
    assert of_both_signs(batch).tolist() == [False, False, True, False]
    skewed = Batch(rng.lognormal(sigma=4.0, size=4000), [1] * 4000, np.repeat(np.arange(1000), 4))
    advantages = est.max_rl().advantages(skewed)
    assert -1.0 <= advantages.min() < -0.99
    assert 2.99 < advantages.max() <= 3.0
    near = Batch([1.0, -1.0, 1.0, -0.999], [1] * 4, [0] * 4)
    assert est.max_rl().advantages(near).max() > 1000


def test_max_rl_second_moments_over_continuous_rewards_grow_with_the_sample():
    """In groups of two normal rewards R̄ has a positive density at 0: the mean of A² grows like the number of groups."""
    rewards = np.random.default_rng(1).normal(size=200_000)
    batch = Batch(rewards, np.ones(200_000), np.repeat(np.arange(100_000), 2))
    squares = est.max_rl().advantages(batch) ** 2
    assert squares.mean() > 20.0 * squares[:2000].mean()
    assert squares.max() > 0.2 * squares.sum()


@pytest.mark.parametrize(
    ("options", "shrinkage"),
    [({}, 2 / 3 * 0.125 / 0.1875), ({"shrink_factor": False, "eps": 0.0625}, 0.125 / (0.125 + 0.0625 + 0.0625))],
)
def test_james_stein_by_hand(options, shrinkage):
    """With (n−1)/n, and as in the authors' code: without it and with ε in the denominator of λ."""
    batch = Batch([1, 0, 1, 1, 0, 1], [1] * 6, ["a", "a", "b", "b", "c", "c"])
    # for group a: v = ((0) + (0.5/2))/2 = 0.125, means 1 and 0.5, μ̄ = 0.75, s = 0.0625
    expected = [1 - shrinkage * 0.75, 0 - ((1 - shrinkage) * 1 + shrinkage * 0.75)]
    assert_allclose(est.james_stein(**options).advantages(batch)[:2], expected)


def test_james_stein_without_spread_is_rloo():
    batch = Batch([1, 1, 0, 0, 1, 1], [1] * 6, [0, 0, 1, 1, 2, 2])
    assert_allclose(est.james_stein().advantages(batch), est.rloo().advantages(batch))
    one_group = Batch([1, 0, 0], [1] * 3, [0, 0, 0])
    assert_allclose(est.james_stein().advantages(one_group), est.rloo().advantages(one_group))


def test_shrinkage_ignores_the_noise_of_groups_of_one():
    batch = Batch([0, 1, 0, 1, 1], [1] * 5, ["a", "a", "b", "b", "c"])
    # for group a: v = 0.25 from b alone, means 0.5 and 1, μ̄ = 0.75, s = 0.0625
    shrinkage = 2 / 3 * 0.25 / 0.3125
    baseline = (1 - shrinkage) * 1 + shrinkage * 0.75
    assert est.james_stein().advantages(batch)[0] == pytest.approx(-baseline)
    assert est.james_stein().advantages(batch)[4] == 0.0


def test_a_completion_counts_once_for_each_token():
    batch = Batch([1, 0], [3, 1], ["a", "a"])
    # over tokens: mean 3/4, unbiased variance (3/16 + 9/16)/3 = 1/4
    assert_allclose(est.reinforce_pp().advantages(batch), [[0.5] * 3, [-1.5, 0, 0]], rtol=1e-6)
    # R − R̄ = ±1/2: the same shape of spread
    assert_allclose(est.reinforce_pp_baseline().advantages(batch), [0.5, -1.5], rtol=1e-6)
    assert_allclose(whiten(batch.rewards, batch.lengths), [0.5, -1.5], rtol=1e-6)
