"""The KL term against its naive twin, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.recipes.components import in_loss, in_reward
from gradstats.estimators.recipes.components import none_of_kl as none
from gradstats.reference import naive_estimators as naive

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches(), kind=st.sampled_from(["k1", "k2", "k3"]))
def test_kl_in_loss(batch: Batch, kind: str):
    recipe = Recipe("rloo", kl=f"in_loss(beta=0.3, kind={kind})", aggregation="token_mean")
    weights = recipe.weights(batch)
    plain = est.rloo().advantages(batch)
    for i, t in np.argwhere(batch.mask).tolist():
        slope = naive.kl_slope(batch.logprobs[i, t] - batch.ref_logprobs[i, t], kind)
        expected = (plain[i] - 0.3 * slope) * naive.aggregation_factor(batch, i, "token_mean")
        assert weights[i, t] == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert not weights[~batch.mask].any()


@FEW
@given(batch=batches(), beta=st.floats(0, 1))
def test_kl_in_reward_passes_through_the_baseline(batch: Batch, beta: float):
    penalty = beta * np.where(batch.mask, batch.logprobs - batch.ref_logprobs, 0.0)
    lowered = batch.with_fields(rewards=batch.rewards - penalty.sum(axis=1))
    recipe = Recipe("rloo", kl=f"in_reward(beta={beta})")
    assert_allclose(recipe.weights(batch.with_fields(old_logprobs=None)), est.rloo().weights(lowered), atol=1e-12)
    tokens = np.where(batch.mask, 0.0, 0.0) if batch.token_rewards is None else batch.token_rewards.copy()
    if batch.token_rewards is None:
        last = batch.mask.shape[1] - 1 - batch.mask[:, ::-1].argmax(axis=1)
        tokens[np.arange(len(last)), last] = batch.rewards
    dense = batch.with_fields(token_rewards=tokens - penalty)
    by_token = Recipe("gae(gamma=0.9)", kl=f"in_reward(beta={beta})")
    assert_allclose(by_token.weights(batch), est.gae(gamma=0.9).weights(dense), atol=1e-10)


LOG_RATIO = np.array([[0.5, -0.25], [0.0, 0.0]])
BATCH = Batch([1, 0], [2, 1], ["a", "a"], logprobs=LOG_RATIO - 1, ref_logprobs=-np.ones((2, 2)))  # A = 1 and −1, N = 2


def test_the_penalty_in_the_reward_by_hand():
    penalised, loss_weights = in_reward(beta=2.0)(BATCH)
    # Σ_t k1 is 0.25 and 0
    assert_allclose(penalised.rewards, [1 - 2 * 0.25, 0])
    assert_allclose(penalised.token_rewards, [[-1.0, 1 + 0.5], [0, 0]])
    assert loss_weights == 0.0
    for kind, value in {"k2": LOG_RATIO**2 / 2, "k3": np.exp(-LOG_RATIO) - 1 + LOG_RATIO}.items():
        penalised, _ = in_reward(beta=2.0, kind=kind)(BATCH)
        assert_allclose(penalised.rewards, [1 - 2 * value[0].sum(), 0])


P, Q = 0.3, 0.6
#: The two tokens of a policy with Pr(first) = P = sigmoid(θ), against a reference with Pr(first) = Q.
TWO_TOKENS = Batch([0, 0], [1, 1], ["a", "a"], logprobs=np.log([[P], [1 - P]]), ref_logprobs=np.log([[Q], [1 - Q]]))
SCORES = np.array([1 - P, -P])  # ∂ log π/∂θ


def slope_of_the_divergence() -> float:
    def divergence(theta: float) -> float:
        first = 1 / (1 + np.exp(-theta))
        return first * np.log(first / Q) + (1 - first) * np.log((1 - first) / (1 - Q))

    theta, step = np.log(P / (1 - P)), 1e-5
    return (divergence(theta + step) - divergence(theta - step)) / (2 * step)


def test_the_penalty_in_the_loss_by_hand():
    slopes = {
        "k1": [[1, 1], [1, 0]],
        "k2": LOG_RATIO,
        "k3": 1 - np.exp(-LOG_RATIO),
    }
    for kind, slope in slopes.items():
        unchanged, loss_weights = in_loss(beta=0.3, kind=kind)(BATCH)
        assert unchanged is BATCH
        assert_allclose(loss_weights, -0.3 * np.asarray(slope))
    assert none()(BATCH)[0] is BATCH


def test_the_expected_gradient_of_the_penalty_in_the_reward_is_that_of_the_divergence_for_k1_alone():
    expected = -0.1 * slope_of_the_divergence()
    for kind, equal in (("k1", True), ("k2", False), ("k3", False)):
        rewards = in_reward(beta=0.1, kind=kind)(TWO_TOKENS)[0].rewards
        found = np.array([P, 1 - P]) @ (rewards * SCORES)
        assert (abs(found - expected) < 1e-9) == equal


def test_the_expected_penalty_of_the_loss_is_none_for_k1_and_the_divergence_for_k2():
    for kind, expected in (("k1", 0.0), ("k2", -0.1 * slope_of_the_divergence())):
        weights = in_loss(beta=0.1, kind=kind)(TWO_TOKENS)[1][:, 0]
        assert np.array([P, 1 - P]) @ (weights * SCORES) == pytest.approx(expected, abs=1e-9)
