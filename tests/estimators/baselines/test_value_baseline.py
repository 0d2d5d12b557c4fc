"""GAE and VinePPO by hand, against their naive twins and in their limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from estimator_batches import FEW, batches
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.reference.naive_estimators import NAIVE_TOKEN_ESTIMATORS
from gradstats.rollouts.table import Rollouts


def test_by_hand():
    batch = Batch([1], [2], ["a"], values=[[0.5, 0.25]])
    # δ_1 = 0.9·0.25 − 0.5 and δ_2 = 1 − 0.25; A_1 = δ_1 + 0.9·0.5·δ_2
    assert_allclose(est.gae(gamma=0.9, lam=0.5).advantages(batch), [[-0.275 + 0.45 * 0.75, 0.75]])
    steps = Batch([1], [3], ["a"], values=[[0.5, np.nan, 0.8]])
    # the step of the first two tokens raises the value from 0.5 to 0.8; the last ends in the reward 1
    assert_allclose(est.vine().advantages(steps), [[0.3, 0.3, 0.2]])
    dense = steps.with_fields(token_rewards=np.array([[0.1, 0.2, 1.0]]))
    assert_allclose(est.vine().advantages(dense), [[0.3 + 0.3, 0.3 + 0.3, 0.2]])


@FEW
@given(batch=batches())
def test_gae_limits(batch: Batch):
    returns = est.remax().advantages(batch.with_fields(greedy_rewards=np.zeros(len(batch.rewards))))
    values = np.where(batch.mask, batch.values, 0.0)
    assert_allclose(est.gae().advantages(batch), returns - values, atol=1e-12)
    assert_allclose(est.gae(lam=0.0).advantages(batch), est.vine().advantages(batch), atol=1e-12)


@FEW
@given(batch=batches(), seed=st.integers(0, 1000))
def test_vine_with_steps(batch: Batch, seed: int):
    inside = np.random.default_rng(seed).random(batch.mask.shape) < 0.5
    inside[np.arange(len(inside)), batch.mask.argmax(axis=1)] = False
    stepped = batch.with_fields(values=np.where(inside, np.nan, batch.values))
    advantages = est.vine().advantages(stepped)
    np.testing.assert_allclose(advantages, NAIVE_TOKEN_ESTIMATORS["vine"](stepped), rtol=1e-10, atol=1e-10)


def test_values_that_are_missing_are_refused_where_they_matter():
    batch = Batch([1], [2], [0], values=[[0.5, np.nan]])
    with pytest.raises(ValueError, match="gae needs a value at every counted token"):
        est.gae().advantages(batch)
    with pytest.raises(ValueError, match="first counted token"):
        est.vine().advantages(Batch([1], [2], [0], values=[[np.nan, 0.5]]))


def test_values_of_a_head_and_of_prefixes_are_kept_apart():
    both = Batch([1], [2], [0], values=[[0.5, np.nan]], fitted_values=[[0.25, 0.75]])
    assert_allclose(est.gae(lam=0.0).advantages(both), [[0.5, 0.25]])
    assert_allclose(est.vine().advantages(both), [[0.5, 0.5]])
    with pytest.raises(ValueError, match=r"only values of a fitted head are known: .*values\.monte_carlo in a run"):
        est.vine().advantages(both.with_fields(values=None))
    with pytest.raises(ValueError, match="gae needs values"):
        est.gae().advantages(both.with_fields(values=None, fitted_values=None))
    measured = SimpleNamespace(
        rollouts=Rollouts.from_sequences([[5]], [[1, 2]], [1.0], ["a"]), fitted_values=[np.array([0.25, 0.75])]
    )
    given = Batch.from_measurement(measured, values=[np.array([0.5, 0.5])])
    assert given.fitted_values is None
    assert Batch.from_measurement(measured).has("values")
