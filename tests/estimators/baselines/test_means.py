"""Plain means as baselines, and the groups that every baseline is formed over."""

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import (
    is_batch_level,
    mean_scale,
    packed_rewards,
    rewards_to_go,
    unbiased,
    unbiased_if_loo,
    weighted_mean_advantages,
)

MASK = np.array([[True, False, True, False], [False, True, True, True]])


def test_the_weighted_mean_by_hand():
    batch = Batch([1, 0, 4], [1, 1, 1], ["a", "a", "b"])
    weights = np.array([3.0, 1.0, 2.0])
    by_group = weighted_mean_advantages(batch, weights, False, "group", "nan")
    assert_allclose(by_group, [1 - 0.75, -0.75, np.nan])
    assert_allclose(weighted_mean_advantages(batch, weights, False, "batch", "nan"), np.array([1, 0, 4]) - 11 / 6)
    others = weighted_mean_advantages(batch, weights, True, "batch", "nan")
    assert_allclose(others, [1 - 8 / 3, 0 - 11 / 5, 4 - 3 / 4])


def test_leave_one_out_keeps_its_digits_beside_a_dominant_sample():
    batch = Batch([0.0, 1.0, 0.3], [1_000_000, 1, 2], ["a"] * 3)
    advantages = est.length_weighted(alpha=2.0, loo=True).advantages(batch)
    assert advantages[0] == pytest.approx(0 - (1 * 1 + 0.3 * 16) / 17, rel=1e-12)


WITH_SINGLETON = (
    "batch_mean group_mean rloo dr_grpo asymmetric token_mean norm_weighted grpo pass_at_k max_rl james_stein"
)


@pytest.mark.parametrize("name", WITH_SINGLETON.split())
def test_singletons(name: str):
    batch = Batch([0.7], [3], ["a"], sq_norms=[2.0])
    for singleton, expected in {"zero": 0.0, "reward": 0.7, "nan": np.nan}.items():
        assert_allclose(est.get(name, singleton=singleton).advantages(batch), [expected])


def test_returns_discount_by_counted_token():
    """A reward without tokens stands on the last counted token, and masked rewards are skipped."""
    batch = Batch([3, 5], [2, 3], ["a", "b"], mask=MASK)
    assert_array_equal(packed_rewards(batch), [[0, 3, 0, 0], [0, 0, 5, 0]])
    assert_array_equal(rewards_to_go(batch), [[3, 0, 3, 0], [0, 5, 5, 5]])
    assert_array_equal(rewards_to_go(batch, 0.5), [[1.5, 0, 3, 0], [0, 1.25, 2.5, 5]])
    dense = batch.with_fields(token_rewards=np.array([[1.0, 100.0, 2.0, 100.0], [100.0, 1.0, 0.0, 4.0]]))
    assert_array_equal(rewards_to_go(dense, 0.5), [[1 + 1, 0, 2, 0], [0, 1 + 0 + 1, 2, 4]])


@pytest.mark.parametrize(
    ("label", "scale"),
    [
        ("reinforce", 1.0),
        ("constant(b=0.3)", 1.0),
        ("constant", None),
        ("group_mean", 0.75),
        ("group_mean(loo=True)", 1.0),
        ("length_weighted(alpha=0.8)", None),
        ("length_weighted(alpha=0.8, loo=True)", 1.0),
        ("grpo", None),
        ("james_stein", 1.0),
        ("gae", 1.0),
        ("gae(lam=0.9)", None),
    ],
)
def test_the_scale_in_groups_of_four(label, scale):
    assert est.get(label).expected_scale(4) == scale


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "label", ["group_mean", "rloo", "dr_grpo", "asymmetric(delta=0.3)", "reinforce", "constant(b=0.7)"]
)
def test_the_stated_factor_is_the_enumerated_one(label: str, n: int):
    estimator = est.get(label)
    for p in (0.2, 0.5):
        assert expected_gradient(estimator.weights, p, n) == pytest.approx(estimator.expected_scale(n))


@pytest.mark.parametrize(("singleton", "factor"), [("zero", 0.0), ("reward", 1.0), ("nan", None)])
def test_a_group_of_one_has_the_factor_of_its_rule(singleton: str, factor: float | None):
    parameters = {"singleton": singleton, "loo": False}
    assert unbiased(1, parameters) == mean_scale(1, parameters) == unbiased_if_loo(1, parameters) == factor
    assert est.rloo(singleton=singleton).expected_scale(1) == factor
    if factor is not None:
        assert expected_gradient(est.group_mean(singleton=singleton).weights, 0.3, 1) == pytest.approx(factor)


def test_with_the_own_sample_the_factor_is_known_for_the_mean_only():
    included, left_out = {"singleton": "zero", "loo": False}, {"singleton": "zero", "loo": True}
    assert (mean_scale(5, included), mean_scale(5, left_out)) == (0.8, 1.0)
    assert (unbiased_if_loo(5, included), unbiased_if_loo(5, left_out)) == (None, 1.0)
    # over a batch, the size of the group does not decide
    assert unbiased_if_loo(1, {**included, "scope": "batch"}) is None
    assert is_batch_level({"scope": "batch"})
    assert not is_batch_level({"scope": "group"})


def test_by_hand():
    batch = Batch([1, 0, 5], [1, 2, 3], ["a", "a", "b"])
    for label, expected in {
        "reinforce": [1, 0, 5],
        "rloo": [1, -1, 0],
        "group_mean": [0.5, -0.5, 0],
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
