"""Components composed into the weights of token scores."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import FEW, GIVEN, batches
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal

from gradstats.estimators import Batch, Recipe, recipes


def test_weights_by_hand():
    batch = Batch([1, 0, 1, 1], [1, 3, 2, 2], ["a", "a", "b", "b"])
    dapo = Recipe("group_mean", scale="group_std(eps=1e-9)", aggregation="token_mean", filter="dynamic_sampling")
    root = np.sqrt(0.5)
    # group a: (R − R̄)/std = ±½/√½ over 4 tokens; group b has equal rewards
    first = batch.select(np.array([True, True, False, False]))
    assert_allclose(dapo.weights(first), [0.5 / root / 4, -0.5 / root / 4])
    assert_allclose(dapo.token_weights(first), [[0.5 / root / 4, 0, 0], [-0.5 / root / 4] * 3])
    assert_array_equal(dapo.kept_groups(batch), [True, False])
    assert not dapo.weights(batch)[2:].any()


@FEW
@given(batch=batches(smallest=2))
def test_on_policy_ratios_do_nothing(batch: Batch):
    fresh = batch.with_fields(old_logprobs=None)
    same = batch.with_fields(old_logprobs=batch.logprobs)
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "kimi_k15"):
        recipe = recipes.get(name, **GIVEN.get(name, {}))
        plain = recipes.get(name, ratio="none", **GIVEN.get(name, {}))
        assert recipe.weights(fresh).ndim == 1
        assert_allclose(recipe.weights(fresh), plain.weights(batch), atol=1e-12)
        assert_allclose(recipe.token_weights(same), plain.token_weights(batch), atol=1e-12)


def test_missing_fields_are_named():
    batch = Batch([1, 0], [1, 2], ["a", "a"], old_logprobs=-np.ones((2, 2)))
    with pytest.raises(ValueError, match="recipe:grpo needs logprobs, which this batch lacks"):
        recipes.get("grpo").weights(batch)
    with pytest.raises(ValueError, match=r"needs logprobs and ref_logprobs.*measure with reference_policy="):
        recipes.get("rloo", kl="in_reward").weights(batch)


def test_expected_scale_and_needs():
    assert recipes.get("rloo").expected_scale(4) == 1.0
    assert recipes.get("group_mean").expected_scale(4) == 0.75
    assert recipes.get("dr_grpo").expected_scale(4) is None
    assert recipes.get("grpo", kl="in_loss").needs == ("logprobs", "ref_logprobs")
    assert recipes.get("ppo").needs == ("values",)
    assert recipes.get("grpo").level == "token"
    assert recipes.get("gspo").level == "sequence"


def test_a_recipe_is_batch_level_where_one_of_its_components_is():
    assert not Recipe("rloo").across_groups
    assert Recipe("batch_mean").across_groups
    assert Recipe("rloo", scale="batch_std").across_groups


@pytest.mark.parametrize(
    ("recipe", "unit"),
    [
        (recipes.get("rloo"), "sequence_sum"),
        (recipes.get("grpo"), "sequence_mean / group_std"),
        (recipes.get("dapo"), "token_mean / group_std"),
        (recipes.get("dr_grpo"), "constant"),
        (recipes.get("dr_grpo", max_tokens=100), "constant(max_tokens=100)"),
        (Recipe("grpo", aggregation="token_mean"), "token_mean / group_std"),
        (Recipe("grpo", scale="batch_std"), "sequence_sum / group_std / batch_std"),
    ],
)
def test_recipes_compose_their_unit_and_their_label_gives_it_back(recipe, unit):
    assert recipe.unit == unit
    assert recipes.named.unit_of_label(recipe.label) == unit


def test_a_label_names_what_does_something():
    recipe = Recipe("rloo", ratio="token_clip(eps_high=0.28)", kl="in_loss(beta=0.1)", name="mine")
    components = "rloo · token_clip(eps_high=0.28) · sequence_sum · in_loss(beta=0.1)"
    assert recipe.composition == components
    assert recipe.label == "recipe:mine(advantage=rloo, ratio=token_clip(eps_high=0.28), kl=in_loss(beta=0.1))"
    assert repr(recipe) == f"{recipe.label} [{components}]"
    assert Recipe("rloo").label == "recipe:custom(advantage=rloo)"
    assert len({Recipe("rloo"), Recipe("rloo"), Recipe("group_mean")}) == 2
