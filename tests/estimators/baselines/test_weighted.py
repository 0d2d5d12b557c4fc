"""Baselines weighted by length or norm: hand-computed values and identities."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from off_policy_pair import off_policy_batch, policy_pair
from scipy.optimize import minimize_scalar

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


def test_off_policy_weights_by_hand():
    rho = np.array([[2.0, 1.0, 1.0], [0.5, 1.0, 1.0], [1.0, 2.0, 2.0]])
    batch = Batch(
        [1, 0, 1],
        [1, 2, 3],
        ["a", "a", "a"],
        logprobs=np.log(rho) - 2,
        old_logprobs=np.full((3, 3), -2.0),
        sq_norms=[1.0, 2.0, 5.0],
    )  # ρ_i = 2, ½, 4 and ρ² = 4, ¼, 16
    rewards = np.array([1, 0, 1])
    assert_allclose(est.norm_weighted(off_policy=True).advantages(batch), rewards - 84 / 84.5)
    assert_allclose(est.norm_weighted(off_policy=True, loo=True).advantages(batch), [1 - 80 / 80.5, -1, 1 - 4 / 4.5])
    assert_allclose(est.token_mean(off_policy=True).advantages(batch), rewards - 52 / 52.5)
    assert_allclose(est.length_weighted(alpha=1, off_policy=True).advantages(batch), rewards - 148 / 149)
    assert_allclose(est.constant(off_policy=True).advantages(batch), rewards - 84 / 84.5)
    assert_allclose(est.group_mean(off_policy=True).advantages(batch), rewards - 6 / 6.5)
    assert_allclose(est.rloo(off_policy=True).advantages(batch), [1 - 4 / 4.5, -1, 1 - 2 / 2.5])
    on_policy = batch.with_fields(old_logprobs=None)
    for one in (est.norm_weighted, est.token_mean, est.constant, est.rloo):
        assert_allclose(one(off_policy=True).advantages(on_policy), one().advantages(on_policy))


def test_the_off_policy_constant_minimises_the_variance_of_the_weighted_gradient():
    scored, sampler = policy_pair()
    p, rho = sampler.probabilities, scored.probabilities / sampler.probabilities

    def trace(b: float) -> float:
        gradients = (rho * (scored.rewards - b))[:, None] * scored.sequence_scores
        return float(p @ (gradients**2).sum(axis=1) - ((p @ gradients) ** 2).sum())

    best = minimize_scalar(trace).x
    assert (p * rho**2 * scored.sq_norms) @ (scored.rewards - best) == pytest.approx(0.0, abs=1e-6)
    rows = np.random.default_rng(0).choice(len(p), 300_000, p=p)
    drawn = off_policy_batch(scored, sampler, rows, np.arange(len(rows)))
    own = drawn.rewards - est.constant(off_policy=True).advantages(drawn)
    assert own[0] == pytest.approx(best, abs=0.02)
    assert abs(best - (drawn.rewards - est.constant().advantages(drawn))[0]) > 0.05
