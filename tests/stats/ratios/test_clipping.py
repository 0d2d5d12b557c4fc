"""Shares clipped, counted by hand on a few completions whose ratios are known."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats.estimators import Batch, Recipe, recipes
from gradstats.stats.ratio_diagnostics import clipped_share, clipping_recipes, without_clip

RATIOS = np.array([[1.5, 1.1, 0.5], [1.5, 0.5, 1.0], [1.0, 0.7, 1.3], [4.0, 1.0, 1.0]])
MASK = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 1]], dtype=bool)
REWARDS = np.array([1.0, 0.0, 0.0, 1.0])
ENERGY = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 0], [9, 0, 10]])


def batch(**fields: np.ndarray) -> Batch:
    return Batch(
        REWARDS, MASK.sum(axis=1), np.array([0, 0, 1, 1]), MASK,
        logprobs=np.log(RATIOS), old_logprobs=np.zeros_like(RATIOS), **fields,
    )  # fmt: skip


def test_a_token_clip():
    share = clipped_share(recipes.get("grpo"), batch(token_energy=ENERGY))
    # A > 0 and ρ > 1.2: 1.5 of the first, 4 of the last; A < 0 and ρ < 0.8: 0.5 of the second, 0.7 of the third.
    assert share.clipped_tokens.value == pytest.approx(4 / 10)
    assert share.clipped_completions.value == 1.0
    assert share.removed_of == "token_energy"
    assert share.removed_share.value == pytest.approx((1 + 5 + 8 + 9) / (6 + 15 + 15 + 19))


def test_a_wider_clip_and_a_dual_clip():
    wider = clipped_share(recipes.get("dapo"), batch())
    assert wider.clipped_tokens.value == pytest.approx(4 / 10)
    assert clipped_share(recipes.get("grpo", eps_high=0.6, eps_low=0.4), batch()).clipped_tokens.value == 0.2
    dual = Recipe("group_mean", ratio="token_clip(eps_low=0.9, eps_high=9, dual_clip=1.4)")
    assert clipped_share(dual, batch()).clipped_tokens.value == pytest.approx(1 / 10)


def test_without_token_energies_a_token_clip_removes_an_unknown_share():
    share = clipped_share(recipes.get("grpo"), batch(sq_norms=np.arange(1.0, 5.0)))
    assert share.removed_of == "unknown"
    assert np.isnan(share.removed_share.value)
    assert np.isnan(share.record(0.95)["removed_share_low"])


def test_a_clip_of_completions():
    squares = np.array([1.0, 2.0, 3.0, 4.0])
    share = clipped_share(recipes.get("gspo"), batch(sq_norms=squares))
    # Geometric means 0.94, 0.91, 0.84, 2: the last three are clipped, the first lies on the side of its advantage.
    assert share.clipped_completions.value == pytest.approx(3 / 4)
    assert share.clipped_tokens.value == pytest.approx(7 / 10)
    assert share.removed_of == "sq_norms"
    assert share.removed_share.value == pytest.approx(9 / 10)


def test_a_clipped_weight_removes_nothing():
    share = clipped_share(recipes.get("cispo"), batch(token_energy=ENERGY))
    # Outside [0.8, 1.2]: 1.5 and 0.5; 1.5 and 0.5; 0.7; 4.
    assert share.clipped_tokens.value == pytest.approx(6 / 10)
    assert share.removed_share.value == 0.0


def test_without_an_advantage_nothing_is_clipped():
    equal = batch().with_fields(rewards=np.ones(4))
    share = clipped_share(recipes.get("dr_grpo"), equal)
    assert share.clipped_tokens.value == 0.0


def test_intervals_leave_each_prompt_out():
    rng = np.random.default_rng(3)
    ratios = np.exp(0.3 * rng.normal(size=(40, 6)))
    many = Batch(
        rng.integers(0, 2, 40), np.full(40, 6), np.repeat(np.arange(10), 4),
        logprobs=np.log(ratios), old_logprobs=np.zeros((40, 6)),
    )  # fmt: skip
    recipe = recipes.get("grpo")
    share = clipped_share(recipe, many).clipped_tokens
    replicates = np.array(
        [clipped_share(recipe, many.select(many.groups != m)).clipped_tokens.value for m in range(10)]
    )
    assert share.stderr == pytest.approx(np.sqrt(0.9 * np.sum((replicates - replicates.mean()) ** 2)), rel=1e-9)
    row = clipped_share(recipe, many).record(0.95)
    assert 0 <= row["clipped_tokens_low"] < row["clipped_tokens"] < row["clipped_tokens_high"] <= 1


def test_an_opened_recipe_weights_by_the_ratio_alone():
    for name in ("grpo", "gspo", "cispo"):
        opened = without_clip(recipes.get(name)).token_weights(batch())
        assert np.all(opened[MASK] != 0)
    truncated = Recipe("rloo", ratio="sequence_product(truncate=1.1)")
    assert without_clip(truncated).ratio.label == "sequence_product"
    assert clipped_share(truncated, batch()).clipped_completions.value == pytest.approx(1 / 4)


def test_the_recipes_that_clip():
    names = clipping_recipes()
    assert {"ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo"} <= set(names)
    assert not {"rloo", "kimi_k15", "rloo_is", "opo"} & set(names)
