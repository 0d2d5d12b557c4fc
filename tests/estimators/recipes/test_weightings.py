"""Recipes as combinations of weightings that no advantage enters, measured once."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import FEW, batches
from hypothesis import assume, given
from numpy.testing import assert_allclose

from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.weightings import ByWeightings, weighting_names, weightings, weightings_by_name

LABELS = [
    "recipe:grpo",
    "recipe:dapo(loo=True)",
    "recipe:cispo",
    "recipe:grpo(kl=in_loss(beta=0.5), dual_clip=1.5)",
    "recipe:dr_grpo(kl=in_reward)",
    "recipe:grpo(advantage=reinforce_pp_baseline)",
    "recipe:grpo(mask=top_entropy(threshold=0.5), kl=in_loss(beta=0.5))",
    "recipe:dapo(mask=reject_tokens(kind=k3, high=0.1))",
]


@FEW
@given(batch=batches())
@pytest.mark.parametrize("label", LABELS)
def test_the_combination_is_the_weight_of_every_token(batch: Batch, label: str):
    assume(batch.lengths.sum() > 1)  # the variance over tokens that whitening divides by
    recipe = recipes.get(label)
    patterns = weightings(recipe, batch)
    assert tuple(patterns) == weighting_names(recipe)
    for name, values in weightings_by_name(patterns, batch).items():
        assert_allclose(values, patterns[name])
    with np.errstate(all="ignore"):
        coefficients = ByWeightings(recipe, ("another", *patterns)).weights(batch)
        expected = recipe.token_weights(batch)
    assert not coefficients[:, 0].any()
    combined = np.einsum("nk,knt->nt", coefficients[:, 1:], np.stack(list(patterns.values())))
    assert_allclose(combined, expected, rtol=1e-10, atol=1e-12)


def test_clips_of_the_same_widths_share_their_weightings():
    assert weighting_names(recipes.get("grpo")) == weighting_names(recipes.get("dr_grpo"))
    assert weighting_names(recipes.get("grpo")) != weighting_names(recipes.get("dapo"))
    assert weighting_names(recipes.get("grpo", kl="in_loss")) == ("token_clip[+]", "token_clip[-]", "in_loss")


def test_an_advantage_of_each_token_or_a_mask_by_quantiles_leaves_nothing_to_measure_once():
    assert weighting_names(recipes.get("ppo")) == weighting_names(recipes.get("dapo_top_entropy")) == ()
    assert weightings(Recipe("otb", ratio="token_clip"), Batch([1], [1], ["a"])) == {}
