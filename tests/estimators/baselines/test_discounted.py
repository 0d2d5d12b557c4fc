"""Discounted group baselines against the definition, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators
from gradstats.estimators import Batch, recipes

FEW = settings(max_examples=30, deadline=None)


def by_loops(batch: Batch, baseline: np.ndarray, gamma: float) -> np.ndarray:
    found = np.zeros(batch.mask.shape)
    for i in range(len(found)):
        columns = np.flatnonzero(batch.mask[i])
        rewards = [0.0] * (len(columns) - 1) + [batch.rewards[i]]
        if batch.token_rewards is not None:
            rewards = list(batch.token_rewards[i, columns])
        for place, column in enumerate(columns):
            to_go = sum(gamma ** (u - place) * rewards[u] for u in range(place, len(columns)))
            found[i, column] = to_go - gamma ** (len(columns) - 1 - place) * baseline[i]
    return found


@FEW
@given(batch=batches())
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("label", ["rloo", "group_mean", "length_weighted(alpha=0.8, loo=True)"])
def test_the_definition(batch: Batch, label: str, gamma: float):
    baseline = batch.rewards - estimators.get(label).advantages(batch)
    found = estimators.discounted(baseline=label, gamma=gamma).advantages(batch)
    assert_allclose(found, by_loops(batch, baseline, gamma), rtol=1e-10, atol=1e-12)


def test_without_discount_it_is_the_baseline():
    batch = Batch([1, 0, 2], [2, 3, 1], ["a", "a", "a"])
    plain = estimators.rloo().weights(batch)
    assert_array_equal(estimators.get("discounted").weights(batch), np.where(batch.mask, plain[:, None], 0))
    assert estimators.get("discounted").expected_scale(3) == 1.0
    assert estimators.get("discounted(gamma=0.9)").expected_scale(3) is None


def test_it_is_an_advantage_of_recipes():
    recipe = recipes.get("recipe:grpo(advantage=discounted(baseline=group_mean, gamma=0.5))")
    batch = Batch([1, 0], [2, 1], ["a", "a"])
    deviation = np.sqrt(0.5) + 1e-6
    assert_allclose(recipe.token_weights(batch), np.array([[0.25, 0.5], [-0.5, 0]]) / deviation / [[4], [2]])


def test_a_baseline_that_is_none_is_refused():
    with pytest.raises(ValueError, match="baseline is 'grpo', which does not subtract one number.*choose one such"):
        estimators.discounted(baseline="grpo").advantages(Batch([1, 0], [1, 1], ["a", "a"]))
