"""The weighted mean, groups of one, and the optimal constant."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.weighted import optimal_constant, weighted_mean_advantages

WITH_SINGLETON = (
    "batch_mean group_mean rloo dr_grpo asymmetric token_mean norm_weighted grpo pass_at_k max_rl james_stein"
)


@pytest.mark.parametrize("name", WITH_SINGLETON.split())
def test_singletons(name: str):
    batch = Batch([0.7], [3], ["a"], sq_norms=[2.0])
    for singleton, expected in {"zero": 0.0, "reward": 0.7, "nan": np.nan}.items():
        assert_allclose(est.get(name, singleton=singleton).advantages(batch), [expected])


def test_the_weighted_mean_by_hand():
    batch = Batch([1, 0, 4], [1, 1, 1], ["a", "a", "b"])
    weights = np.array([3.0, 1.0, 2.0])
    by_group = weighted_mean_advantages(batch, weights, False, "group", "nan")
    assert_allclose(by_group, [1 - 0.75, -0.75, np.nan])
    assert_allclose(weighted_mean_advantages(batch, weights, False, "batch", "nan"), np.array([1, 0, 4]) - 11 / 6)
    others = weighted_mean_advantages(batch, weights, True, "batch", "nan")
    assert_allclose(others, [1 - 8 / 3, 0 - 11 / 5, 4 - 3 / 4])


def test_the_optimal_constant_minimises_the_variance():
    rng = np.random.default_rng(0)
    rewards, scores = rng.normal(1.0, 1.0, 40), rng.normal(size=(40, 3)) * rng.uniform(0.1, 5, (40, 1))
    scores = np.concatenate([scores, -scores])  # E[S] = 0, as on-policy
    rewards = np.tile(rewards, 2)
    best = optimal_constant(rewards, (scores**2).sum(axis=1))

    def trace(b: float) -> float:
        return float(((rewards - b)[:, None] * scores).var(axis=0).sum())

    assert best == pytest.approx(minimize_scalar(trace).x, abs=1e-6)


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="all weights of its average are zero"):
        assert np.isnan(est.norm_weighted().advantages(Batch([1, 0], [1, 1], [0, 0], sq_norms=[0.0, 0.0]))).all()
    with pytest.warns(RuntimeWarning, match="every squared gradient norm is zero"):
        assert np.isnan(est.constant().advantages(Batch([1], [1], [0], sq_norms=[0.0]))).all()
