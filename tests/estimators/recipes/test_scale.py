"""Scales against their naive twins."""

from __future__ import annotations

from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches(smallest=2))
def test_scales(batch: Batch):
    grpo = Recipe("group_mean", scale="group_std(eps=1e-4, ddof=0)").weights(batch)
    assert_allclose(grpo, est.grpo(eps=1e-4, ddof=0).weights(batch), atol=1e-10)
    max_rl = Recipe("group_mean", scale="group_mean").weights(batch)
    assert_allclose(max_rl, est.max_rl().weights(batch), atol=1e-10)
    batch_std = Recipe("rloo", scale="batch_std").weights(batch)
    expected = est.rloo().weights(batch) / (batch.rewards.std(ddof=1) + 1e-6)
    assert_allclose(batch_std, expected, rtol=1e-6, atol=1e-9)
