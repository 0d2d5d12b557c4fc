"""REINFORCE++: whitening over the tokens of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.scaled import divide_by_deviation, standard_deviation, whiten


def test_standard_deviations_of_two_groups_are_those_of_numpy():
    values, index = np.array([1.0, 5.0, 2.0, 4.0, 9.0]), np.array([0, 1, 0, 0, 1])
    for ddof in (0, 1):
        first, second = np.std([1, 2, 4], ddof=ddof), np.std([5, 9], ddof=ddof)
        assert_allclose(standard_deviation(values, index, 2, ddof), [first, second, first, first, second])
    assert_array_equal(np.isnan(standard_deviation(values, index, 2, 2)), index == 1)
    # digits survive a large common offset
    assert_allclose(standard_deviation(values + 1e9, index, 2, 1), standard_deviation(values, index, 2, 1))


def test_grpo_by_hand():
    batch = Batch([0, 1, 5], [1, 1, 1], ["a", "a", "b"])
    root = np.sqrt(0.5)
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5 / root, 0.5 / root, 0])
    assert_allclose(est.grpo(eps=0.5, ddof=0).advantages(batch), [-0.5, 0.5, 0])
    # with the mean of the others the standard deviation still includes every sample
    assert_allclose(est.grpo(eps=0, loo=True).advantages(batch), [-1 / root, 1 / root, 0])


def test_a_deviation_that_is_zero_or_undefined_gives_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="other is NaN for 2 completions: the standard deviation of their rewards"):
        quotient = divide_by_deviation(np.array([1.0, 1.0, 1.0]), np.array([2.0, 0.0, np.nan]), 0.0, "other")
    assert_array_equal(quotient, [0.5, np.nan, np.nan])


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="give eps > 0"):
        assert np.isnan(est.grpo(eps=0).advantages(Batch([1, 1], [1, 1], [0, 0]))).all()


def test_james_stein_by_hand():
    batch = Batch([1, 0, 1, 1, 0, 1], [1] * 6, ["a", "a", "b", "b", "c", "c"])
    # for group a: v = ((0) + (0.5/2))/2 = 0.125, means 1 and 0.5, μ̄ = 0.75, s = 0.0625, λ = 2/3·0.125/0.1875
    shrinkage = 2 / 3 * 0.125 / 0.1875
    expected = [1 - shrinkage * 0.75, 0 - ((1 - shrinkage) * 1 + shrinkage * 0.75)]
    assert_allclose(est.james_stein().advantages(batch)[:2], expected)


def test_james_stein_without_spread_is_rloo():
    batch = Batch([1, 1, 0, 0, 1, 1], [1] * 6, [0, 0, 1, 1, 2, 2])
    assert_allclose(est.james_stein().advantages(batch), est.rloo().advantages(batch))
    one_group = Batch([1, 0, 0], [1] * 3, [0, 0, 0])
    assert_allclose(est.james_stein().advantages(one_group), est.rloo().advantages(one_group))


def test_james_stein_as_in_the_authors_code():
    batch = Batch([1, 0, 1, 1, 0, 1], [1] * 6, ["a", "a", "b", "b", "c", "c"])
    # as above, without (n−1)/n and with ε = 0.0625 in the denominator of λ
    shrinkage = 0.125 / (0.125 + 0.0625 + 0.0625)
    advantages = est.james_stein(shrink_factor=False, eps=0.0625).advantages(batch)
    assert_allclose(advantages[:2], [1 - shrinkage * 0.75, 0 - ((1 - shrinkage) * 1 + shrinkage * 0.75)])


def test_shrinkage_ignores_the_noise_of_groups_of_one():
    batch = Batch([0, 1, 0, 1, 1], [1] * 5, ["a", "a", "b", "b", "c"])
    # for group a: v = 0.25 from b alone, means 0.5 and 1, μ̄ = 0.75, s = 0.0625
    shrinkage = 2 / 3 * 0.25 / 0.3125
    baseline = (1 - shrinkage) * 1 + shrinkage * 0.75
    assert est.james_stein().advantages(batch)[0] == pytest.approx(-baseline)
    assert est.james_stein().advantages(batch)[4] == 0.0


FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches())
def test_whitened_advantages_have_mean_zero_and_variance_one_over_tokens(batch: Batch):
    if batch.lengths.sum() < 2:
        return
    for estimator in (est.reinforce_pp(), est.gae(whiten=True), est.reinforce_pp_baseline()):
        advantages = estimator.advantages(batch)
        tokens = advantages[batch.mask] if advantages.ndim == 2 else np.repeat(advantages, batch.lengths)
        assert tokens.mean() == pytest.approx(0, abs=1e-8)
        # v/(v + 1e-8), which is 1 unless the values are nearly equal
        assert tokens.var(ddof=1) == pytest.approx(1, abs=0.02) or tokens.var(ddof=1) < 1e-3


def test_a_completion_counts_once_for_each_token():
    batch = Batch([1, 0], [3, 1], ["a", "a"])
    # over tokens: mean 3/4, unbiased variance (3/16 + 9/16)/3 = 1/4
    assert_allclose(est.reinforce_pp().advantages(batch), [[0.5] * 3, [-1.5, 0, 0]], rtol=1e-6)
    # R − R̄ = ±1/2: the same shape of spread
    assert_allclose(est.reinforce_pp_baseline().advantages(batch), [0.5, -1.5], rtol=1e-6)
    assert_allclose(whiten(batch.rewards, batch.lengths), [0.5, -1.5], rtol=1e-6)


def test_degenerate_input_is_nan_with_a_reason_of_whitening():
    with pytest.warns(RuntimeWarning, match="one token has no variance"):
        assert np.isnan(est.reinforce_pp().advantages(Batch([1], [1], [0]))).all()
