"""Ratios and clips against their naive twins, by hand, and their expectation off-policy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from off_policy_pair import expected_off_policy, policy_pair

from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.components import COMPONENTS, get_component


def test_the_sequence_product_is_unbiased_off_policy_and_its_clip_is_not():
    scored, sampler = policy_pair()
    for label in ("rloo", "rloo(off_policy=True)", "norm_weighted(loo=True, off_policy=True)"):
        expected = expected_off_policy(scored, sampler, Recipe(label, ratio="sequence_product"), 2)
        assert_allclose(expected, scored.gradient, atol=1e-12)
    clipped = ("sequence_product(eps_high=0.2, eps_low=0.2)", "sequence_product(truncate=1.5)")
    for biased in ("none", "token_clip", *clipped):
        expected = expected_off_policy(scored, sampler, Recipe("rloo", ratio=biased), 2)
        assert np.abs(expected - scored.gradient).max() > 1e-3


def test_a_clipped_product_may_overflow_and_an_unclipped_one_is_refused():
    batch = Batch([1, 0], [1, 1], ["a", "a"], logprobs=[[-1.0], [-1.0]], old_logprobs=[[-900.0], [-1.0]])
    clip = Recipe("rloo", ratio="sequence_product(eps_high=0.2, eps_low=0.2)")
    assert_allclose(clip.weights(batch), [0, -0.5])
    assert_allclose(Recipe("rloo", ratio="sequence_product(truncate=5)").weights(batch), [2.5, -0.5])
    for ratio in ("sequence_product", "token_clip"):
        with pytest.raises(ValueError, match=r"completion 0 is e\^899, which overflows"):
            Recipe("rloo", ratio=ratio).weights(batch)
    with pytest.raises(ValueError, match="either clips .* or truncates"):
        Recipe("rloo", ratio="sequence_product(truncate=5, eps_low=0.1)").weights(batch)


def test_trls_sequence_mask_loses_the_completions_above_the_cap_and_nothing_else():
    """Of E[ρ R S] = Σ π R S, over the sampler's completions, those with ρ ≤ C are left."""
    scored, sampler = policy_pair()
    ratios = scored.probabilities / sampler.probabilities
    for low, high in ((None, 1.3), (0.8, 2.0)):
        kept = (ratios <= high) & (ratios >= (low or 0.0))
        assert 0 < kept.sum() < kept.size
        recipe = Recipe("reinforce", correction=get_component("correction", "mask_completions", low=low, high=high))
        left = np.einsum("n,ntd->d", np.where(kept, scored.probabilities * scored.rewards, 0.0), scored.token_scores)
        assert_allclose(expected_off_policy(scored, sampler, recipe, 1), left, atol=1e-12)
        assert np.abs(left - scored.gradient).max() > 1e-3


def test_on_policy_topr_is_the_group_mean_and_off_policy_it_is_biased():
    scored, sampler = policy_pair()
    topr = recipes.get("topr")
    assert_allclose(expected_off_policy(scored, scored, topr, 3), 2 / 3 * scored.gradient, atol=1e-12)
    cosine = np.corrcoef(expected_off_policy(scored, sampler, topr, 2), scored.gradient)[0, 1]
    assert abs(cosine) < 0.999


@pytest.mark.parametrize("name", [name for name, one in COMPONENTS["ratio"].items() if not one.on_policy])
def test_a_ratio_of_one_leaves_the_advantage_whatever_the_loss(name: str):
    required = {"root_length_clip": {"width": 0.5}, "log_ratio_penalty": {"tau": 1.0}}
    logprobs = np.log([[0.2, 0.9, 0.5], [0.4, 0.6, 0.0 + 1e-3], [0.3, 0.5, 0.5]])
    batch = Batch([1, 0, 0.25], [3, 3, 1], ["a"] * 3, logprobs=logprobs, old_logprobs=logprobs)
    recipe = Recipe("rloo", ratio=get_component("ratio", name, **required.get(name, {})))
    assert_allclose(recipe.token_weights(batch), Recipe("rloo").token_weights(batch), atol=1e-12)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        # ρ = (2, ½) and (4, 1): the products are 1 and 4
        ("truncate_tokens(cap=3, low=0.8)", [[2, 0.8], [3, 1]]),
        ("truncate_completions(cap=3, low=1.5)", [[1.5, 1.5], [3, 3]]),
        ("mask_tokens(low=None, high=3)", [[2, 0.5], [0, 1]]),
        ("mask_completions", [[1, 1], [0, 0]]),
        ("mask_completions(low=0.9, high=5)", [[1, 1], [4, 4]]),
    ],
)
def test_trls_four_corrections_by_hand(label: str, expected):
    old = -3 * np.ones((2, 2))
    batch = Batch([1, 1], [2, 2], ["a", "b"], logprobs=old + np.log([[2, 0.5], [4, 1]]), old_logprobs=old)
    assert_allclose(Recipe("reinforce", correction=label).token_weights(batch), expected)
