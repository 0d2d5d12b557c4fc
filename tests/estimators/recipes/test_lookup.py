"""The KL term against its naive twin, and the named recipes as the papers compose them."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.ratio import token_clip
from gradstats.reference import naive_recipe as naive

FEW = settings(max_examples=40, deadline=None)
GIVEN = {"kimi_k15": {"tau": 1.0}, "kimi": {"tau": 1.0}, "length_weighted": {"alpha": 0.8}}


def on_policy(batch: Batch) -> Batch:
    return batch.with_fields(old_logprobs=None)


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
    assert_allclose(recipe.weights(on_policy(batch)), est.rloo().weights(lowered), atol=1e-12)
    tokens = np.where(batch.mask, 0.0, 0.0) if batch.token_rewards is None else batch.token_rewards.copy()
    if batch.token_rewards is None:
        last = batch.mask.shape[1] - 1 - batch.mask[:, ::-1].argmax(axis=1)
        tokens[np.arange(len(last)), last] = batch.rewards
    dense = batch.with_fields(token_rewards=tokens - penalty)
    by_token = Recipe("gae(gamma=0.9)", kl=f"in_reward(beta={beta})")
    assert_allclose(by_token.weights(batch), est.gae(gamma=0.9).weights(dense), atol=1e-10)


@FEW
@given(batch=batches(smallest=2))
def test_on_policy_ratios_do_nothing(batch: Batch):
    fresh = on_policy(batch)
    same = batch.with_fields(old_logprobs=batch.logprobs)
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "kimi_k15"):
        recipe = recipes.get(name, **GIVEN.get(name, {}))
        plain = recipes.get(name, ratio="none", **GIVEN.get(name, {}))
        assert recipe.weights(fresh).ndim == 1
        assert_allclose(recipe.weights(fresh), plain.weights(batch), atol=1e-12)
        assert_allclose(recipe.token_weights(same), plain.token_weights(batch), atol=1e-12)


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


def test_expected_scale_and_needs():
    assert recipes.get("rloo").expected_scale(4) == 1.0
    assert recipes.get("group_mean").expected_scale(4) == 0.75
    assert recipes.get("dr_grpo").expected_scale(4) is None
    assert recipes.get("grpo", kl="in_loss").needs == ("logprobs", "ref_logprobs")
    assert recipes.get("ppo").needs == ("values",)
    assert recipes.get("grpo").level == "token"
    assert recipes.get("gspo").level == "sequence"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: recipes.get("grop"), KeyError, "no recipe is called 'grop': did you mean 'grpo'"),
        (
            lambda: recipes.get("grpo", epshigh=1),
            TypeError,
            "no component or parameter 'epshigh': did you mean 'eps_high'",
        ),
        (
            lambda: recipes.get("grpo", ratio="token_clp"),
            KeyError,
            "no ratio is called 'token_clp': did you mean",
        ),
        (lambda: recipes.get("kimi_k15"), TypeError, "needs a value for tau"),
        (lambda: Recipe("rloo", ratio="token_clip(epsilon=1)"), TypeError, "has no parameter 'epsilon'"),
        (
            lambda: Recipe("rloo", ratio="token_clip(eps_low=-1)"),
            ValueError,
            "eps_low must be a finite number",
        ),
        (lambda: Recipe("rloo", kl="in_loss(kind=k4)"), ValueError, "kind must be 'k1' or 'k2' or 'k3'"),
        (lambda: Recipe("rloo", aggregation="constant(max_tokens=0)"), ValueError, "max_tokens must be"),
        (lambda: Recipe("rloo", scale=token_clip()), TypeError, "is a component of kind ratio, given as scale"),
        (lambda: recipes.get(recipes.get("rloo"), loo=True), TypeError, "build a variant of rloo with Recipe"),
    ],
)
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()


def test_missing_fields_are_named():
    batch = Batch([1, 0], [1, 2], ["a", "a"], old_logprobs=-np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"grpo\[.*\] needs logprobs, which this batch lacks"):
        recipes.get("grpo").weights(batch)
    with pytest.raises(ValueError, match=r"needs logprobs and ref_logprobs.*measure with reference_policy="):
        recipes.get("rloo", kl="in_reward").weights(batch)


@pytest.mark.parametrize(
    ("recipe", "unit"),
    [
        (lambda: recipes.get("rloo"), "sequence_sum"),
        (lambda: recipes.get("grpo"), "sequence_mean / group_std"),
        (lambda: recipes.get("dapo"), "token_mean / group_std"),
        (lambda: recipes.get("dr_grpo"), "constant"),
        (lambda: recipes.get("dr_grpo", max_tokens=100), "constant(max_tokens=100)"),
        (lambda: Recipe("grpo", aggregation="token_mean"), "token_mean / group_std"),
        (lambda: Recipe("grpo", scale="batch_std"), "sequence_sum / group_std / batch_std"),
    ],
)
def test_recipes_compose_their_unit_and_their_label_gives_it_back(recipe, unit):
    assert recipe().unit == unit
    assert recipes.lookup.unit_of_label(recipe().label) == unit
