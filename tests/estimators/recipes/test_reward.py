"""DAPO's soft overlong punishment, against its equation 13."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.components import get_component

FEW = settings(max_examples=40, deadline=None)


def punishment(length: int, greatest: float, cache: float) -> float:
    """Equation 13 of 2503.14476, case by case."""
    if length <= greatest - cache:
        return 0.0
    if length <= greatest:
        return ((greatest - cache) - length) / cache
    return -1.0


def test_every_case_of_the_equation():
    batch = Batch(np.zeros(6), [1, 6, 7, 8, 10, 11], ["a"] * 6)
    added = get_component("reward", "soft_overlong(max=10, cache=4)")(batch)
    assert_array_equal(added, [0, 0, -0.25, -0.5, -1, -1])


@FEW
@given(batch=batches())
def test_weights_are_those_of_the_punished_rewards(batch: Batch):
    recipe = Recipe("rloo", reward="soft_overlong(max=4, cache=3)")
    punished = batch.rewards + [punishment(int(length), 4, 3) for length in batch.lengths]
    assert_allclose(recipe.weights(batch), estimators.rloo().weights(batch.with_fields(rewards=punished)), atol=1e-12)


@FEW
@given(batch=batches())
def test_rewards_by_token_are_punished_at_their_end(batch: Batch):
    recipe = Recipe("gae(lam=1.0)", reward="soft_overlong(max=4, cache=3)")
    added = np.array([punishment(int(length), 4, 3) for length in batch.lengths])
    # With λ = γ = 1 every token's advantage holds the whole punishment: it lies on the last token.
    difference = recipe.advantages(batch) - Recipe("gae(lam=1.0)").advantages(batch)
    assert_allclose(difference, np.where(batch.mask, added[:, None], 0.0), atol=1e-12)


def test_dynamic_sampling_looks_at_the_rewards_themselves():
    batch = Batch([1, 1], [1, 9], ["a", "a"])
    recipe = recipes.get("recipe:dapo(reward=soft_overlong(max=8, cache=4))")
    assert recipe.kept_groups(batch).tolist() == [False]
    assert recipe.label == "recipe:dapo(reward=soft_overlong(max=8, cache=4))"
    assert recipes.get("dapo", filter="none", reward="soft_overlong(max=8, cache=4)").weights(batch)[1] < 0


def test_a_cache_above_the_greatest_length_is_refused():
    with pytest.raises(ValueError, match="cache is 9, more than max, 8: give at most max"):
        Recipe("rloo", reward="soft_overlong(max=8, cache=9)").weights(Batch([1], [1], ["a"]))
