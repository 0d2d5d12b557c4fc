"""GRPO, Kimi, MaxRL, James–Stein and REINFORCE++ in their limits; test_estimator_twins.py compares all with loops."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.scaled import (
    divide_by_deviation,
    group_mean_scale,
    of_both_signs,
    standard_deviation,
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


def test_kimi_of_rewards_whose_exponential_is_not_representable():
    batch = Batch([0, 1, 0, 1000], [1] * 4, ["a", "a", "b", "b"])
    soft = np.log((1 + np.e) / 2)
    # exp(1000) is not representable: the greatest reward leaves the logarithm first
    expected = [0 - soft, 1 - soft, -(1000 - np.log(2)), np.log(2)]
    assert_allclose(est.kimi(tau=1).advantages(batch), expected)
    # of two completions, the mean of the others is the other
    assert_allclose(est.kimi(tau=1, loo=True).advantages(batch), [-1, 1, -1000, 1000])


def test_max_rl_advantages_are_bounded_but_where_signs_differ():
    rewards = [0, 0, 3, 1, -2, -1, 0, 0, -1, 1, 1, 0.5, 0, 0, 0, 0]
    batch = Batch(rewards, [1] * 16, np.repeat(np.arange(4), 4))
    assert of_both_signs(batch).tolist() == [False, False, True, False]
    assert_array_equal(group_mean_scale(batch)[::4], [1, -0.75, 0.375, np.inf])
    skewed = np.random.default_rng(0).lognormal(sigma=4.0, size=4000)
    advantages = est.max_rl().advantages(Batch(skewed, [1] * 4000, np.repeat(np.arange(1000), 4)))
    assert -1.0 <= advantages.min() < -0.99
    assert 2.99 < advantages.max() <= 3.0
    near = Batch([1.0, -1.0, 1.0, -0.999], [1] * 4, [0] * 4)
    assert est.max_rl().advantages(near).max() > 1000


def test_james_stein_without_spread_is_rloo():
    batch = Batch([1, 1, 0, 0, 1, 1], [1] * 6, [0, 0, 1, 1, 2, 2])
    assert_allclose(est.james_stein().advantages(batch), est.rloo().advantages(batch))
    one_group = Batch([1, 0, 0], [1] * 3, [0, 0, 0])
    assert_allclose(est.james_stein().advantages(one_group), est.rloo().advantages(one_group))
