"""Kimi's baseline by hand and in its limits."""

from __future__ import annotations

import numpy as np
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch

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
