"""MaxRL by hand, and its expected gradient by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.means import group_mean_scale, of_both_signs


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
