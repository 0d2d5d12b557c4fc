"""Plain means and constants: by hand, in their limits, and the constant of least variance."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import FEW, batches
from hypothesis import given
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

from gradstats import estimators as est
from gradstats.estimators import Batch


def test_worked_example():
    batch = Batch(rewards=[0, 0, 1, 0], lengths=[3, 1, 2, 5], groups=[7, 7, 7, 7])
    assert_allclose(est.rloo().advantages(batch), [-1 / 3, -1 / 3, 1, -1 / 3])
    assert_allclose(est.grpo(eps=0).advantages(batch), [-0.5, -0.5, 1.5, -0.5])
    assert_allclose(est.group_mean().advantages(batch), [-0.25, -0.25, 0.75, -0.25])


@FEW
@given(batch=batches(smallest=2))
def test_group_mean_is_a_share_of_rloo(batch: Batch):
    sizes = batch.group_sizes[batch.group_index]
    rloo = est.rloo().advantages(batch)
    assert_allclose(est.group_mean().advantages(batch), (sizes - 1) / sizes * rloo, atol=1e-12)
    assert_allclose(est.dr_grpo().advantages(batch), est.group_mean().advantages(batch))
    assert_allclose(est.group_mean(loo=True).advantages(batch), rloo)


def test_by_hand():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    for label, expected in {
        "reinforce": [1, 0, 5],
        "constant(b=0.75)": [0.25, -0.75, 4.25],
        "batch_mean": [-1, -2, 3],
        "batch_mean(loo=True)": [1 - 2.5, 0 - 3, 5 - 0.5],
        # the shift raises every advantage but that of a group of one
        "asymmetric": [0.5 + 0.1, -0.5 + 0.1, 0],
        "asymmetric(delta=0.25, loo=True)": [1 - 0.25, -1 - 0.25, 0],
    }.items():
        assert_allclose(est.get(label).advantages(batch), expected)


def test_the_optimal_constant_minimises_the_variance():
    rng = np.random.default_rng(0)
    rewards, scores = rng.normal(1.0, 1.0, 40), rng.normal(size=(40, 3)) * rng.uniform(0.1, 5, (40, 1))
    scores = np.concatenate([scores, -scores])  # E[S] = 0, as on-policy
    rewards = np.tile(rewards, 2)
    best = est.optimal_constant(rewards, (scores**2).sum(axis=1))

    def trace(b: float) -> float:
        return float(((rewards - b)[:, None] * scores).var(axis=0).sum())

    assert best == pytest.approx(minimize_scalar(trace).x, abs=1e-6)


def test_a_pool_without_norms_has_no_optimal_constant():
    with pytest.warns(RuntimeWarning, match="every squared gradient norm is zero"):
        assert np.isnan(est.constant().advantages(Batch([1], [1], [0], sq_norms=[0.0]))).all()
