"""The named recipes as the papers compose them, and what overrides change."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import GIVEN
from hypothesis import settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, recipes

FEW = settings(max_examples=40, deadline=None)


def test_the_table_of_recipes_is_what_the_papers_say():
    rows = {
        name: (r.advantage.name, r.scale.name, r.ratio.label, r.aggregation.name, r.filter.name)
        for name in [
            "reinforce",
            "rloo",
            "ppo",
            "grpo",
            "dr_grpo",
            "dapo",
            "gspo",
            "cispo",
            "kimi_k15",
            "opo",
            "otb",
        ]
        for r in [recipes.get(name, **GIVEN.get(name, {}))]
    }
    clip = "token_clip"
    assert rows == {
        "reinforce": ("reinforce", "none", "none", "sequence_sum", "none"),
        "rloo": ("rloo", "none", "none", "sequence_sum", "none"),
        "ppo": ("gae", "none", clip, "token_mean", "none"),
        "grpo": ("group_mean", "group_std", clip, "sequence_mean", "none"),
        "dr_grpo": ("group_mean", "none", clip, "constant", "none"),
        "dapo": ("group_mean", "group_std", "token_clip(eps_high=0.28)", "token_mean", "dynamic_sampling"),
        "gspo": ("group_mean", "group_std", "sequence_clip", "sequence_mean", "none"),
        "cispo": ("group_mean", "group_std", "clipped_weight", "token_mean", "none"),
        "kimi_k15": ("kimi", "none", "log_ratio_penalty(tau=1)", "sequence_sum", "none"),
        "opo": ("token_mean", "none", "none", "sequence_sum", "none"),
        "otb": ("otb", "none", "none", "sequence_sum", "none"),
    }


def test_every_recipe_composes_and_has_a_row():
    batch = Batch([1, 0, 1, 0], [1, 3, 2, 2], ["a", "a", "b", "b"], logprobs=-np.ones((4, 3)),
                  sum_pi_squared=np.full((4, 3), 0.5), values=np.zeros((4, 3)), greedy_rewards=np.ones(4),
                  sq_norms=np.ones(4), token_energy=np.ones((4, 3)), token_cross=np.ones((4, 3)))  # fmt: skip
    table = recipes.table()
    assert list(table["name"]) == recipes.names()
    assert list(table.columns) == list(est.table().columns)
    assert len(set(recipes.names())) == len(recipes.names())
    for name in recipes.names():
        recipe = recipes.get(name, **GIVEN.get(name, {}))
        weights = recipe.token_weights(batch)
        assert weights.shape == (4, 3)
        assert np.isfinite(weights).all()
        assert not weights[~batch.mask].any()
        if recipe.level == "sequence":
            assert_allclose(np.where(batch.mask, recipe.weights(batch)[:, None], 0), weights)


def test_overrides():
    assert recipes.get("grpo", eps=1e-4, loo=True, eps_high=0.28).parameters == {
        "advantage": "group_mean(loo=True)",
        "scale": "group_std(eps=0.0001)",
        "ratio": "token_clip(eps_high=0.28)",
        "aggregation": "sequence_mean",
        "kl": "none",
        "filter": "none",
    }
    kimi = recipes.get("kimi_k15", tau=0.5)
    assert (kimi.advantage.parameters["tau"], kimi.ratio.parameters["tau"]) == (0.5, 0.5)
    assert recipes.get("dapo", aggregation="constant", max_tokens=8).aggregation.label == "constant(max_tokens=8)"
    assert recipes.get(kimi) is kimi
    assert est.get(kimi) is kimi


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: recipes.get("grop"), KeyError, "no recipe is called 'grop': did you mean 'grpo'"),
        (
            lambda: recipes.get("grpo", epshigh=1),
            TypeError,
            "no component or parameter 'epshigh': did you mean 'eps_high'",
        ),
        (lambda: recipes.get(recipes.get("rloo"), loo=True), TypeError, "build a variant of rloo with Recipe"),
    ],
)
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()
