"""Baselines weighted by length or norm: hand-computed values and identities."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch

FEW = settings(max_examples=40, deadline=None)


def test_hand_computed_length_weights():
    batch = Batch(rewards=[1, 0, 1], lengths=[1, 2, 3], groups=["a", "a", "a"])
    assert_allclose(est.token_mean().advantages(batch), np.array([1, 0, 1]) - 4 / 6)
    assert_allclose(est.length_weighted(alpha=1.0).advantages(batch), np.array([1, 0, 1]) - 10 / 14)
    assert_allclose(est.length_weighted(alpha=1.0, loo=True).advantages(batch), [1 - 9 / 13, -10 / 10, 1 - 1 / 5])


@FEW
@given(batch=batches(), loo=st.booleans(), scope=st.sampled_from(["group", "batch"]))
def test_length_weights_at_zero_and_one_half(batch: Batch, loo: bool, scope: str):
    mean = est.batch_mean(loo=loo) if scope == "batch" else est.group_mean(loo=loo)
    flat = est.length_weighted(alpha=0, loo=loo, scope=scope)
    half = est.length_weighted(alpha=0.5, loo=loo, scope=scope)
    assert_allclose(flat.advantages(batch), mean.advantages(batch), atol=1e-12)
    assert_allclose(half.advantages(batch), est.token_mean(loo=loo, scope=scope).advantages(batch), atol=1e-12)


def test_norm_weighted_on_the_batch_is_the_optimal_constant():
    batch = Batch([0, 1, 3], [1, 2, 3], ["a", "b", "b"], sq_norms=[1.0, 2.0, 5.0])
    assert_allclose(est.constant().advantages(batch), est.norm_weighted(scope="batch").advantages(batch))
    best = est.optimal_constant(batch.rewards, batch.sq_norms)
    assert best == pytest.approx(17 / 8)
    assert_allclose(est.constant(b=best).advantages(batch), est.constant().advantages(batch))


def test_norm_weighted_by_hand():
    batch = Batch([1, 0, 1], [1, 2, 3], ["a", "a", "a"], sq_norms=[1.0, 2.0, 5.0])
    assert_allclose(est.norm_weighted().advantages(batch), np.array([1, 0, 1]) - 6 / 8)
    assert_allclose(est.norm_weighted(loo=True).advantages(batch), [1 - 5 / 7, -6 / 6, 1 - 1 / 3])


def test_powers_of_long_lengths_do_not_overflow():
    batch = Batch([1, 0], [10, 30], ["a", "a"])
    # 10^{2α} : 30^{2α} is 1 : 3^{2α}, and beyond every float for α = 400
    assert_allclose(est.length_weighted(alpha=400.0).advantages(batch), [1, 0], atol=1e-12)
    assert_allclose(est.length_weighted(alpha=-400.0).advantages(batch), [0, -1], atol=1e-12)
