"""Baselines of single tokens, and those from state values, beside their twins in test_estimator_twins.py."""

from types import SimpleNamespace

import numpy as np
import pytest
from estimator_batches import FEW, batches, expected_gradient
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from oracles.naive_estimators import NAIVE_TOKEN_ESTIMATORS

from gradstats import estimators as est
from gradstats.estimators import Batch, recipes
from gradstats.estimators.baselines.token_baseline import logit_energy, token_energy
from gradstats.rollouts.table import Rollouts


def test_without_discount_it_is_the_baseline():
    batch = Batch([1, 0, 2], [2, 3, 1], ["a", "a", "a"])
    plain = est.rloo().weights(batch)
    assert_array_equal(est.get("discounted").weights(batch), np.where(batch.mask, plain[:, None], 0))
    assert est.get("discounted").expected_scale(3) == 1.0
    assert est.get("discounted(gamma=0.9)").expected_scale(3) is None


def test_discounted_is_an_advantage_of_recipes():
    recipe = recipes.get("recipe:grpo(advantage=discounted(baseline=group_mean, gamma=0.5))")
    batch = Batch([1, 0], [2, 1], ["a", "a"])
    deviation = np.sqrt(0.5) + 1e-6
    assert_allclose(recipe.token_weights(batch), np.array([[0.25, 0.5], [-0.5, 0]]) / deviation / [[4], [2]])


def test_remax_is_unbiased():
    def weights(batch: Batch) -> np.ndarray:
        return est.remax().weights(batch.with_fields(greedy_rewards=np.ones(len(batch.rewards))))[:, 0]

    assert expected_gradient(weights, 0.3, 3) == pytest.approx(1.0)


def test_the_energy_of_the_logits_is_the_norm_of_their_gradient():
    probabilities = np.array([0.7, 0.2, 0.1])
    # ∂ log π(y)/∂ logits = e_y − π
    expected = [np.sum((np.eye(3)[token] - probabilities) ** 2) for token in range(3)]
    batch = Batch(
        [1], [3], ["a"], logprobs=np.log(probabilities)[None], sum_pi_squared=np.full((1, 3), (probabilities**2).sum())
    )
    assert_allclose(logit_energy(batch), [expected])
    assert_allclose(token_energy(batch, "logit"), [expected])
    weighted = batch.with_fields(importance=np.array([[1.0, 2.0, 3.0]]))
    assert_allclose(token_energy(weighted, "logit"), [np.array([1, 4, 9]) * expected])


@FEW
@given(batch=batches(), seed=st.integers(0, 1000))
def test_vine_with_steps(batch: Batch, seed: int):
    inside = np.random.default_rng(seed).random(batch.mask.shape) < 0.5
    inside[np.arange(len(inside)), batch.mask.argmax(axis=1)] = False
    stepped = batch.with_fields(values=np.where(inside, np.nan, batch.values))
    advantages = est.vine().advantages(stepped)
    np.testing.assert_allclose(advantages, NAIVE_TOKEN_ESTIMATORS["vine"](stepped), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (est.gae(), "gae needs a value at every counted token"),
        (est.vine(), "first counted token"),
        (est.discounted(baseline="grpo"), "baseline is 'grpo', which does not subtract one number.*choose one such"),
    ],
)
def test_values_that_are_missing_and_a_baseline_that_is_none_are_refused(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.advantages(Batch([1], [2], [0], values=[[np.nan, 0.5]]))


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
