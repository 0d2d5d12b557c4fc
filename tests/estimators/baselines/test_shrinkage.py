"""The James–Stein baseline by hand."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch


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
