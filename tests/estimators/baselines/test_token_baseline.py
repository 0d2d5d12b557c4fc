"""Baselines of single tokens, and those from state values."""

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


def test_a_baseline_that_is_none_is_refused():
    with pytest.raises(ValueError, match="baseline is 'grpo', which does not subtract one number.*choose one such"):
        est.discounted(baseline="grpo").advantages(Batch([1, 0], [1, 1], ["a", "a"]))


def test_remax_subtracts_the_greedy_reward_from_the_return_and_is_unbiased():
    batch = Batch([1, 0], [2, 1], ["a", "a"], greedy_rewards=[1, 0.5])
    assert_allclose(est.remax().advantages(batch), [[0, 0], [-0.5, 0]])
    dense = batch.with_fields(token_rewards=np.array([[0.25, 0.75], [2.0, 0.0]]))
    assert_allclose(est.remax().advantages(dense), [[1 - 1, 0.75 - 1], [2 - 0.5, 0]])

    def weights(batch: Batch) -> np.ndarray:
        return est.remax().weights(batch.with_fields(greedy_rewards=np.ones(len(batch.rewards))))[:, 0]

    assert expected_gradient(weights, 0.3, 3) == pytest.approx(1.0)


def test_otb_by_hand():
    batch = Batch([1, 0], [2, 2], ["a", "a"], token_energy=[[1.0, 2.0], [3.0, 1.0]])
    # W = [1, 3] and [3, 4]: B = 1/4 and 3/7
    assert_allclose(est.otb(energy="exact").advantages(batch), [[1 - 1 / 4, 1 - 3 / 7], [-1 / 4, -3 / 7]], atol=1e-8)
    assert_allclose(est.otb(energy="exact", loo=True).advantages(batch), [[1, 1], [-1, -1]], atol=1e-7)


def test_packing_aligns_turns_whose_holes_differ():
    kept = [[1, 1, 0, 1], [1, 0, 1, 1]]
    energy = np.array([[1.0, 2.0, 9.0, 3.0], [4.0, 9.0, 5.0, 6.0]])
    batch = Batch([1, 0], [3, 3], ["a", "a"], mask=kept, token_energy=energy)
    packed = Batch([1, 0], [3, 3], ["a", "a"], token_energy=[[1, 2, 3], [4, 5, 6]])
    turns = est.otb_turns(energy="exact").advantages(batch)
    assert_allclose(turns[batch.mask], est.otb(energy="exact").advantages(packed).reshape(-1))
    assert not np.allclose(turns, est.otb(energy="exact").advantages(batch))


def test_zero_tail_of_the_single_longest_leaves_ties_alone():
    batch = Batch([1, 0], [4, 2], ["a", "a"], token_energy=np.ones((2, 4)))
    rule, without = est.otb(energy="exact"), est.otb(energy="exact", zero_tail=False)
    assert_allclose(rule.advantages(batch)[0, 2:], 1.0)  # raw return
    assert_allclose(without.advantages(batch)[0, 2:], 0.0, atol=1e-7)
    tied = Batch([1, 0, 1], [4, 4, 2], ["a", "a", "a"], token_energy=np.ones((3, 4)))
    assert_allclose(rule.advantages(tied), without.advantages(tied))


def test_otb_of_a_group_of_one_is_the_return():
    batch = Batch([0.5], [3], ["a"], token_energy=np.ones((1, 3)), token_cross=np.ones((1, 3)))
    assert_allclose(est.otb(energy="exact", zero_tail=False).advantages(batch), 0.5)
    assert_allclose(est.causal_optimal().advantages(batch), 0.5)


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


def test_causal_optimal_by_hand():
    energy, cross = [[1.0, 2.0], [3.0, 0.0]], [[2.0, 3.0], [5.0, 0.0]]
    batch = Batch([1, 4], [2, 1], ["a", "a"], token_energy=energy, token_cross=cross)
    # B = (1·2 + 4·5)/(1 + 3) and, where one completion is left, (1·3)/2
    first, second = 22 / 4, 3 / 2
    assert_allclose(est.causal_optimal().advantages(batch), [[1 - first, 1 - second], [4 - first, 0]])
    # from the other alone: 20/3 and 2/1; nobody else is alive at the second token
    assert_allclose(est.causal_optimal(loo=True).advantages(batch), [[1 - 20 / 3, 1], [4 - 2, 0]])


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
