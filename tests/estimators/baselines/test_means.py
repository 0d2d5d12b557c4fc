"""Plain means as baselines, and the groups that every baseline is formed over."""

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import mean_scale, packed_rewards, rewards_to_go, unbiased, unbiased_if_loo

MASK = np.array([[True, False, True, False], [False, True, True, True]])


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
        ("constant", None),
        ("group_mean(loo=True)", 1.0),
        ("length_weighted(alpha=0.8)", None),
        ("length_weighted(alpha=0.8, loo=True)", 1.0),
        ("length_weighted(alpha=0.8, loo=True, scope=batch)", 1.0),
        ("grpo", None),
        ("james_stein", 1.0),
        ("gae", 1.0),
        ("gae(lam=0.9)", None),
        *((label, 1.0) for label in ("reinforce", "constant(b=0.7)", "rloo")),
        *((label, 0.75) for label in ("group_mean", "dr_grpo", "asymmetric(delta=0.3)")),
    ],
)
def test_the_scale_in_groups_of_four_is_the_enumerated_one(label, scale):
    estimator = est.get(label)
    assert estimator.expected_scale(4) == scale
    if scale is not None and not estimator.needs and not estimator.across_groups:
        assert expected_gradient(estimator.weights, 0.2, 4) == pytest.approx(scale)


@pytest.mark.parametrize(("singleton", "factor"), [("zero", 0.0), ("reward", 1.0), ("nan", None)])
def test_a_group_of_one_has_the_factor_of_its_rule(singleton: str, factor: float | None):
    parameters = {"singleton": singleton, "loo": False}
    assert unbiased(1, parameters) == mean_scale(1, parameters) == unbiased_if_loo(1, parameters) == factor
    # over a batch, the size of the group does not decide
    assert unbiased_if_loo(1, {**parameters, "scope": "batch"}) is None
    if factor is not None:
        assert expected_gradient(est.group_mean(singleton=singleton).weights, 0.3, 1) == pytest.approx(factor)


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
