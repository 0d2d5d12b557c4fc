"""The standard deviation of a group, and GRPO's advantage."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.scaled import divide_by_deviation, standard_deviation


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
