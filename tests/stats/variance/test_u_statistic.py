"""The mean over pairs of different units against double loops."""

import numpy as np
import pytest

from gradstats.stats.variance.estimates import mean_over_pairs


def by_loops(first, second, signs, left_out=None):
    kept = [m for m in range(len(first)) if m != left_out]
    width = min(first.shape[1], second.shape[1])
    products = [sum(signs[d] * first[i, d] * second[j, d] for d in range(width)) for i in kept for j in kept if i != j]
    return np.mean(products)


@pytest.mark.parametrize("signed", [False, True])
def test_equals_loops_with_and_without_each_unit(signed):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(5, 3)), rng.normal(size=(5, 4))
    signs = np.array([1.0, -1.0, 1.0, -1.0]) if signed else np.ones(4)
    value, without = mean_over_pairs(first, second, signs if signed else None)
    assert value == pytest.approx(by_loops(first, second, signs))
    np.testing.assert_allclose(without, [by_loops(first, second, signs, left_out) for left_out in range(5)])


def test_leading_axes_are_separate_sets_of_units():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3))
    values, without = mean_over_pairs(first, second)
    for k in range(2):
        value, rest = mean_over_pairs(first[k], second[k])
        assert values[k] == pytest.approx(float(value))
        np.testing.assert_allclose(without[k], rest)


def test_two_units_have_a_value_and_no_replicates():
    vectors = np.array([[1.0, 2.0], [3.0, -1.0]])
    value, without = mean_over_pairs(vectors, vectors)
    assert value == pytest.approx(1.0)
    assert np.isnan(without).all()
