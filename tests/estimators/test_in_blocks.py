"""Weights formed a few prompts at a time are those of all prompts together."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch, registry
from gradstats.estimators import ratios as in_blocks
from gradstats.estimators.ratios import in_blocks_of_groups

RNG = np.random.default_rng(0)
GROUPS = RNG.permutation(np.repeat(np.arange(9), [1, 2, 3, 4, 5, 4, 3, 6, 2]))
LENGTHS = RNG.integers(1, 8, len(GROUPS))
BATCH = Batch(RNG.normal(size=len(GROUPS)), LENGTHS, GROUPS)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))
    est.register("sees_everything")(lambda batch: batch.rewards - batch.rewards.mean())


def without_mean(batch: Batch) -> np.ndarray:
    sums = np.bincount(batch.group_index, batch.rewards)
    return batch.rewards - (sums / batch.group_sizes)[batch.group_index]


@pytest.mark.parametrize("at_once", [1, 21, 50])
def test_blocks_are_whole_groups_and_keep_the_order(monkeypatch, at_once):
    monkeypatch.setattr(in_blocks, "TOKENS_AT_ONCE", at_once)
    seen = []

    def spied(batch: Batch) -> np.ndarray:
        seen.append(dict(zip(batch.group_labels.tolist(), batch.group_sizes.tolist(), strict=True)))
        return without_mean(batch)

    np.testing.assert_allclose(in_blocks_of_groups(spied, BATCH), without_mean(BATCH), rtol=1e-13, atol=1e-15)
    sizes = dict(zip(BATCH.group_labels.tolist(), BATCH.group_sizes.tolist(), strict=True))
    assert {group: size for part in seen for group, size in part.items()} == sizes
    assert sum(map(len, seen)) == len(sizes)
    width = BATCH.mask.shape[1]
    assert all(len(part) == 1 or sum(part.values()) * width <= at_once for part in seen)


@pytest.mark.parametrize("label", ["grpo", "dr_grpo", "rloo", "rloo_is", "gspo", "grpo(filter=dynamic_sampling)"])
def test_recipes_keep_their_weights(monkeypatch, label):
    recipe = est.get(f"recipe:{label}")
    assert not recipe.across_groups
    whole = recipe.weights(BATCH)
    assert whole.shape == BATCH.rewards.shape
    monkeypatch.setattr(in_blocks, "TOKENS_AT_ONCE", 1)
    np.testing.assert_allclose(recipe.weights(BATCH), whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("advantage", ["rloo", "sees_everything"])
def test_batch_level_recipes_and_functions_of_the_users_own_see_all_prompts(monkeypatch, advantage, registered):
    aggregation = "sequence_mean" if advantage == "sees_everything" else "token_mean"
    recipe = est.Recipe(advantage, aggregation=aggregation)
    whole = recipe.weights(BATCH)
    monkeypatch.setattr(in_blocks, "TOKENS_AT_ONCE", 1)
    np.testing.assert_array_equal(recipe.weights(BATCH), whole)
