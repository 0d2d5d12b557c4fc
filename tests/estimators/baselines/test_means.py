"""MaxRL by hand, and its expected gradient by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches, expected_gradient
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.means import group_mean_scale, of_both_signs


def test_only_the_single_best_counts_in_pass_at_k():
    best = Batch([-3, -1, -2, 1, 1, 0], [1] * 6, ["a"] * 3 + ["b"] * 3)
    assert_allclose(est.pass_at_k().advantages(best), [0, 1, 0, 0, 0, 0])


def test_pass_at_k_divides_the_lead_by_the_standard_deviation():
    batch = Batch([0, 1, 3], [1, 1, 1], ["a", "a", "a"])
    # mean 4/3, squared deviations (16 + 1 + 25)/9
    assert_allclose(est.pass_at_k(normalize=True, eps=0).advantages(batch), [0, 0, 2 / np.sqrt(42 / 9 / 2)])
    assert_allclose(est.pass_at_k(normalize=True, ddof=0, eps=0).advantages(batch), [0, 0, 2 / np.sqrt(42 / 9 / 3)])


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_pass_at_k_follows_the_gradient_of_the_best_reward(n: int, p: float):
    # E[max R] = 1 − (1−p)^N has the derivative N(1−p)^{N−1}, and E[ĝ] is 1/N of it
    assert expected_gradient(est.pass_at_k().weights, p, n) == pytest.approx((1 - p) ** (n - 1))


def test_remax_subtracts_the_greedy_reward_from_the_return():
    batch = Batch([1, 0], [2, 1], ["a", "a"], greedy_rewards=[1, 0.5])
    assert_allclose(est.remax().advantages(batch), [[0, 0], [-0.5, 0]])
    dense = batch.with_fields(token_rewards=np.array([[0.25, 0.75], [2.0, 0.0]]))
    assert_allclose(est.remax().advantages(dense), [[1 - 1, 0.75 - 1], [2 - 0.5, 0]])


def test_remax_is_unbiased():
    def weights(batch: Batch) -> np.ndarray:
        greedy = np.ones(len(batch.rewards))
        return est.remax().weights(batch.with_fields(greedy_rewards=greedy))[:, 0]

    assert expected_gradient(weights, 0.3, 3) == pytest.approx(1.0)


FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches(smallest=2))
def test_kimi_limits(batch: Batch):
    greatest = np.array([batch.rewards[batch.group_index == g].max() for g in batch.group_index])
    cold = est.kimi(tau=1e-9).advantages(batch)
    hot = est.kimi(tau=1e7).advantages(batch)
    alone = batch.group_sizes[batch.group_index] == 1
    assert_allclose(cold, np.where(alone, 0, batch.rewards - greatest), atol=1e-7)
    assert_allclose(hot, est.group_mean().advantages(batch), atol=1e-6)


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


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_the_expected_gradient_is_a_truncated_log_likelihood(n: int, p: float):
    # Σ_{k=0}^{N−2} (1−p)^k; for N → ∞ it is 1/p, the derivative of log p
    assert expected_gradient(est.max_rl().weights, p, n) == pytest.approx(sum((1 - p) ** k for k in range(n - 1)))


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="use rewards of at least 0"):
        assert np.isnan(est.max_rl().advantages(Batch([1, -1], [1, 1], [0, 0]))).all()


def test_advantages_are_bounded_but_where_signs_differ():
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


def test_second_moments_over_continuous_rewards_grow_with_the_sample():
    """In groups of two normal rewards R̄ has a positive density at 0: the mean of A² grows like the number of groups."""
    rewards = np.random.default_rng(1).normal(size=200_000)
    batch = Batch(rewards, np.ones(200_000), np.repeat(np.arange(100_000), 2))
    squares = est.max_rl().advantages(batch) ** 2
    assert squares.mean() > 20.0 * squares[:2000].mean()
    assert squares.max() > 0.2 * squares.sum()


def test_worked_example():
    batch = Batch(rewards=[0, 0, 1, 0], lengths=[3, 1, 2, 5], groups=[7, 7, 7, 7])
    assert_allclose(est.rloo().advantages(batch), [-1 / 3, -1 / 3, 1, -1 / 3])
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5, -0.5, 1.5, -0.5])
    assert_allclose(est.group_mean().advantages(batch), [-0.25, -0.25, 0.75, -0.25])


@FEW
@given(batch=batches(smallest=2))
def test_group_mean_is_a_share_of_rloo(batch: Batch):
    sizes = batch.group_sizes[batch.group_index]
    rloo = est.rloo().advantages(batch)
    assert_allclose(est.group_mean().advantages(batch), (sizes - 1) / sizes * rloo, atol=1e-12)
    assert_allclose(est.dr_grpo().advantages(batch), est.group_mean().advantages(batch))
    assert_allclose(est.group_mean(loo=True).advantages(batch), rloo)


def test_the_mean_of_the_batch_crosses_groups():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    assert_allclose(est.batch_mean().advantages(batch), [-1, -2, 3])
    assert_allclose(est.batch_mean(loo=True).advantages(batch), [1 - 2.5, 0 - 3, 5 - 0.5])
    assert_allclose(est.reinforce().advantages(batch), [1, 0, 5])
    assert_allclose(est.constant(b=0.75).advantages(batch), [0.25, -0.75, 4.25])


def test_the_asymmetric_shift_raises_every_advantage_but_that_of_a_group_of_one():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    assert_allclose(est.asymmetric().advantages(batch), [0.5 + 0.1, -0.5 + 0.1, 0])
    assert_allclose(est.asymmetric(delta=0.25, loo=True).advantages(batch), [1 - 0.25, -1 - 0.25, 0])
