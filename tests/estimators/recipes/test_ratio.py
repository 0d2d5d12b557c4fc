"""Ratios and clips against their naive twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from off_policy_pair import expected_off_policy, policy_pair

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.ratio import token_clip
from gradstats.reference import naive_estimators as naive

FEW = settings(max_examples=40, deadline=None)


def loop(batch: Batch, advantage: np.ndarray, weight, aggregation: str) -> np.ndarray:
    """Σ over counted tokens of weight(log ρ, A) times the aggregation's factor."""
    expected = np.zeros(batch.mask.shape)
    for i, t in np.argwhere(batch.mask).tolist():
        log_ratio = batch.logprobs[i, t] - batch.old_logprobs[i, t]
        factor = naive.aggregation_factor(batch, i, aggregation)
        expected[i, t] = weight(math.exp(log_ratio), advantage[i]) * factor
    return expected


@FEW
@given(batch=batches(), low=st.floats(0.05, 0.5), high=st.floats(0.05, 0.5), dual=st.sampled_from([None, 3.0]))
def test_token_clip_is_the_gradient_of_the_clipped_objective(batch: Batch, low: float, high: float, dual):
    recipe = Recipe("rloo", ratio=token_clip(eps_low=low, eps_high=high, dual_clip=dual))
    expected = loop(
        batch,
        est.rloo().advantages(batch),
        lambda ratio, advantage: naive.token_weight(ratio, advantage, low, high, dual),
        "sequence_sum",
    )
    assert_allclose(recipe.weights(batch), expected, rtol=1e-5, atol=1e-8)


def test_token_clip_by_hand():
    rho = np.array([[1.1, 1.25, 1.35, 0.7], [1.1, 0.75, 3.5, 0.9]])
    batch = Batch(
        [1, 0], [4, 4], ["a", "a"], logprobs=np.log(rho) - 1, old_logprobs=-np.ones((2, 4))
    )  # A = 1 and −1, N = 2
    ppo = Recipe("rloo", ratio="token_clip").weights(batch)
    assert_allclose(2 * ppo, [[1.1, 0, 0, 0.7], [-1.1, 0, -3.5, -0.9]])
    higher = Recipe("rloo", ratio="token_clip(eps_high=0.28)").weights(batch)
    assert_allclose(2 * higher, [[1.1, 1.25, 0, 0.7], [-1.1, 0, -3.5, -0.9]])
    dual = Recipe("rloo", ratio="token_clip(dual_clip=3)").weights(batch)
    assert_allclose(2 * dual, [[1.1, 0, 0, 0.7], [-1.1, 0, 0, -0.9]])


@FEW
@given(batch=batches())
def test_sequence_clip(batch: Batch):
    low, high = 0.3, 0.4
    weights = Recipe("rloo", ratio=f"sequence_clip(eps_low={low}, eps_high={high})").weights(batch)
    assert weights.shape == (len(batch.rewards),)
    advantages = est.rloo().weights(batch)
    for i in range(len(batch.rewards)):
        gaps = [batch.logprobs[i, t] - batch.old_logprobs[i, t] for t in np.flatnonzero(batch.mask[i])]
        ratio = naive.sequence_ratio(gaps)
        clipped = ratio > 1 + high if advantages[i] > 0 else ratio < 1 - low
        assert weights[i] == pytest.approx(0.0 if clipped else ratio * advantages[i], abs=1e-12)


@FEW
@given(batch=batches(), convention=st.sampled_from(["verl", "trl"]))
def test_clipped_weight(batch: Batch, convention: str):
    high = {"verl": 0.2, "trl": 5.0}[convention]
    recipe = Recipe("rloo", ratio=f"clipped_weight(convention={convention})")
    expected = loop(
        batch,
        est.rloo().advantages(batch),
        lambda ratio, advantage: naive.cispo_weight(ratio, advantage, convention, 0.2, high),
        "sequence_sum",
    )
    assert_allclose(recipe.weights(batch), expected, atol=1e-12)


@FEW
@given(batch=batches())
def test_log_ratio_penalty(batch: Batch):
    weights = recipes.get("kimi_k15", tau=0.7).weights(batch)
    gaps = [
        sum(batch.logprobs[i, t] - batch.old_logprobs[i, t] for t in np.flatnonzero(batch.mask[i]))
        for i in range(len(batch.rewards))
    ]
    sizes = batch.group_sizes[batch.group_index]
    advantages = est.kimi(tau=0.7).advantages(batch)
    assert_allclose(weights, (advantages - 0.7 * np.array(gaps)) / sizes, atol=1e-12)


def test_sequence_product_by_hand():
    rho = np.array([[2.0, 1.5], [0.5, 0.8], [1.0, 1.0]])
    batch = Batch(
        [1, 0, 0], [2, 2, 2], ["a", "a", "a"], logprobs=np.log(rho) - 3, old_logprobs=np.full((3, 2), -3.0)
    )  # A = 1, −½, −½ and ρ_i = 3, 0.4, 1
    weights = {
        label: 3 * Recipe("rloo", ratio=label).weights(batch)
        for label in (
            "sequence_product",
            "sequence_product(eps_high=0.5, eps_low=0.5)",
            "sequence_product(eps_high=2.5, eps_low=0.7)",
            "sequence_product(truncate=2)",
            "sequence_product(normalize=True)",
        )
    }
    assert_allclose(weights["sequence_product"], [3, -0.2, -0.5])
    assert_allclose(weights["sequence_product(eps_high=0.5, eps_low=0.5)"], [0, 0, -0.5])
    assert_allclose(weights["sequence_product(eps_high=2.5, eps_low=0.7)"], [3, -0.2, -0.5])
    assert_allclose(weights["sequence_product(truncate=2)"], [2, -0.2, -0.5])
    assert_allclose(weights["sequence_product(normalize=True)"], np.array([3, -0.2, -0.5]) * 3 / 4.4)


def test_the_sequence_product_is_unbiased_off_policy_and_its_clip_is_not():
    scored, sampler = policy_pair()
    for label in ("rloo", "rloo(off_policy=True)", "norm_weighted(loo=True, off_policy=True)"):
        expected = expected_off_policy(scored, sampler, Recipe(label, ratio="sequence_product"), 2)
        assert_allclose(expected, scored.gradient, atol=1e-12)
    for biased in (
        "none",
        "token_clip",
        "sequence_product(eps_high=0.2, eps_low=0.2)",
        "sequence_product(truncate=1.5)",
    ):
        expected = expected_off_policy(scored, sampler, Recipe("rloo", ratio=biased), 2)
        assert np.abs(expected - scored.gradient).max() > 1e-3


def test_a_clipped_product_may_overflow_and_an_unclipped_one_is_refused():
    batch = Batch([1, 0], [1, 1], ["a", "a"], logprobs=[[-1.0], [-1.0]], old_logprobs=[[-900.0], [-1.0]])
    clip = Recipe("rloo", ratio="sequence_product(eps_high=0.2, eps_low=0.2)")
    assert_allclose(clip.weights(batch), [0, -0.5])
    assert_allclose(Recipe("rloo", ratio="sequence_product(truncate=5)").weights(batch), [2.5, -0.5])
    with pytest.raises(ValueError, match=r"completion 0 is e\^899, which overflows"):
        Recipe("rloo", ratio="sequence_product").weights(batch)
    with pytest.raises(ValueError, match=r"completion 0 is e\^899, which overflows"):
        Recipe("rloo", ratio="token_clip").weights(batch)
    with pytest.raises(ValueError, match="either clips .* or truncates"):
        Recipe("rloo", ratio="sequence_product(truncate=5, eps_low=0.1)").weights(batch)
