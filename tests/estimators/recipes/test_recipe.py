"""Recipes: the published ones, their composition, and their weights as combinations of measured weightings."""

import numpy as np
import pytest
from estimator_batches import FEW, GIVEN, batches, columns_of
from hypothesis import assume, given
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe, get, recipes
from gradstats.estimators.recipes.named import RECIPES
from gradstats.estimators.recipes.weightings import (
    ByWeightings,
    is_of_estimator,
    own_advantages,
    own_name,
    weighting_names,
    weightings,
    weightings_by_name,
)
from gradstats.rollouts.table import Rollouts


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
    with pytest.raises(ValueError, match=r"needs logprobs and ref_logprobs.*measure with --set reference_policy.name="):
        recipes.get("rloo", kl="in_reward").weights(batch)


def test_expected_scale_needs_and_levels():
    assert [recipes.get(name).expected_scale(4) for name in ("rloo", "group_mean", "dr_grpo")] == [1.0, 0.75, None]
    assert recipes.get("grpo", kl="in_loss").needs == ("logprobs", "ref_logprobs")
    assert recipes.get("ppo").needs == ("values",)
    assert [recipes.get(name).level for name in ("grpo", "gspo")] == ["token", "sequence"]
    of_batch = (Recipe("rloo"), Recipe("batch_mean"), Recipe("rloo", scale="batch_std"))
    assert [recipe.across_groups for recipe in of_batch] == [False, True, True]


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


@pytest.mark.parametrize(
    ("label", "composition"),
    [  # what autograd of an objective does not check
        ("reinforce", "reinforce · sequence_sum"),
        ("rloo", "rloo · sequence_sum"),
        ("opo", "token_mean · sequence_sum"),
        ("otb", "otb · sequence_sum"),
    ],
)
def test_recipes_of_an_advantage_alone_are_what_the_papers_say(label, composition):
    assert recipes.get(label).composition == composition


def test_every_recipe_composes_and_has_a_row():
    tokens = {name: np.ones((4, 3)) for name in ("entropy", "token_energy", "token_cross")}
    tokens |= {"logprobs": -np.ones((4, 3)), "sum_pi_squared": np.full((4, 3), 0.5), "values": np.zeros((4, 3))}
    further = {"greedy_rewards": np.ones(4), "sq_norms": np.ones(4), "columns": columns_of(np.array([*"aabb"]), 3)}
    batch = Batch([1, 0, 1, 0], [1, 3, 2, 2], ["a", "a", "b", "b"], **tokens, **further)
    table = recipes.table()
    assert list(table["name"]) == recipes.names()
    assert not table.isna().any().any()
    assert len(set(recipes.names())) == len(recipes.names())
    for name in recipes.names():
        recipe = recipes.get(name, **GIVEN.get(name, {}))
        weights = recipe.token_weights(batch)
        assert weights.shape == (4, 3)
        assert np.isfinite(weights).all()
        assert not weights[~batch.mask].any()
        if recipe.level == "sequence":
            assert_allclose(np.where(batch.mask, recipe.weights(batch)[:, None], 0), weights)


def test_the_table_states_a_published_kl_term_that_the_recipe_leaves_out():
    placement = recipes.table().set_index("name")["KL placement"].loc[list(RECIPES)]
    published = placement[placement != "none"].to_dict()
    assert set(published) == {"grpo", "rloo", "gspo", "kimi_k15"}
    for name in ("grpo", "rloo"):  # what is published can be had
        kl = published[name].removeprefix("none (published: ")[:-1]
        assert recipes.get(f"recipe:{name}(kl={kl})").kl.parameters["kind"] == {"grpo": "k3", "rloo": "k1"}[name]


def test_the_published_methods_are_labels():
    frame = recipes.published()
    for label, components in zip(frame["label"], frame["components"], strict=True):
        filled = label.replace("…", "1")
        assert est.get(filled).label == filled
        assert components
    assert [label for label in frame["label"] if "…" in label] == ["recipe:kimi_k15(tau=…)", "recipe:fspo(width=…)"]
    assert "scope=" not in "".join(frame["length handling"])
    row = frame.set_index("label").loc["trl:dapo"]
    assert (row["length handling"], row["run by"]) == ("token_mean over the batch", "TRL by default")


def test_overrides():
    found = recipes.get("grpo", eps=1e-4, loo=True, eps_high=0.28)
    assert {kind: label for kind, label in found.parameters.items() if label != "none"} == {
        "advantage": "group_mean(loo=True)", "scale": "group_std(eps=0.0001)", "ratio": "token_clip(eps_high=0.28)",
        "aggregation": "sequence_mean",
    }  # fmt: skip
    kimi = recipes.get("kimi_k15", tau=0.5)
    assert (kimi.advantage.parameters["tau"], kimi.ratio.parameters["tau"]) == (0.5, 0.5)
    assert recipes.get(kimi) is est.get(kimi) is kimi
    assert recipes.get("dapo", aggregation="constant", max_tokens=8).aggregation.label == "constant(max_tokens=8)"
    assert recipes.get("grpo", kl="in_loss", kind="k1").kl.label == "in_loss(kind=k1)"
    changed = recipes.get("dapo", eps_high=0.3, loo=True, kl=recipes.get("grpo", kl="in_loss").kl)
    assert changed.label == "recipe:dapo(eps_high=0.3, loo=True, kl=in_loss)"
    composed = est.Recipe("length_weighted(alpha=0.8)", scale="group_std", ratio="clipped_weight(convention=trl)")
    for recipe in (changed, composed):
        assert est.get(recipe.label) == recipe != recipes.get("dapo")


@pytest.mark.parametrize(
    ("name", "overrides", "error", "message"),
    [
        ("grop", {}, KeyError, "no recipe is called 'grop': did you mean 'recipe:grpo'"),
        ("grpo", {"epshigh": 1}, TypeError, "no component or parameter 'epshigh': did you mean 'eps_high'"),
        ("recipe:custom(advantage=otb(loo=True), nothing=1)", {}, TypeError, "custom has no component .* 'nothing'"),
        ("kimi_k15", {}, TypeError, r"recipe:kimi_k15 needs a value for tau: write it as recipe:kimi_k15"),
        ("custom", {}, TypeError, "recipe:custom needs a value for advantage"),
        (recipes.get("rloo"), {"loo": True}, TypeError, "build a variant of rloo with Recipe"),
        ("recipe:kimi_k15(tau=-1)", {}, ValueError, r"^recipe:kimi_k15\(tau=-1\): estimator kimi: tau must .* got -1"),
        ("grpo", {"eps_high": -1}, ValueError, r"^recipe:grpo\(eps_high=-1\): ratio token_clip: eps_high must be"),
    ],
)
def test_bad_calls(name, overrides: dict, error: type, message: str):
    with pytest.raises(error, match=message):
        recipes.get(name, **overrides)


def test_the_unit_of_a_label_imports_nothing(monkeypatch):
    monkeypatch.setattr("gradstats.estimators.registry.user_definition", lambda *_: pytest.fail("imported"))
    assert recipes.named.unit_of_label("absent:f(x=1)") == "sequence_sum"
    assert recipes.named.unit_of_label("recipe:grpo(advantage='absent:f')") == "sequence_sum"


LABELS = [
    "recipe:grpo",
    "recipe:dapo(loo=True)",
    "recipe:cispo",
    "recipe:grpo(kl=in_loss(beta=0.5), dual_clip=1.5)",
    "recipe:dr_grpo(kl=in_reward)",
    "recipe:grpo(advantage=reinforce_pp_baseline)",
    "recipe:grpo(mask=top_entropy(threshold=0.5), kl=in_loss(beta=0.5))",
    "recipe:dapo(mask=reject_tokens(kind=k3, high=0.1))",
    "recipe:grpo(correction=mask_tokens(low=0.9), mask=reject_tokens(kind=k3, high=0.1), kl=in_loss(beta=0.5))",
    "recipe:mis",
    "recipe:prime_rl",
    "recipe:sapo",
    "recipe:vespo",
    "recipe:topr",
    "recipe:gpg",
    "recipe:pods(keep=2)",
    "trl:dapo(delta=3)",
    "trl:grpo(off_policy_mask_threshold=0.1)",
    "verl:rloo(loss_mode=dppo_kl)",
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


WIDTHS = ("token_clip[+]", "token_clip[-]")


def test_names_of_weightings():
    """Clips of the same widths share them; an advantage of each token or a mask by quantiles leaves none."""
    assert weighting_names(recipes.get("grpo", kl="in_loss")) == ("token_clip[+]", "token_clip[-]", "in_loss")
    assert weighting_names(recipes.get("grpo")) == weighting_names(recipes.get("dr_grpo")) == WIDTHS
    assert weighting_names(recipes.get("dapo")) == tuple(name.replace("clip", "clip(eps_high=0.28)") for name in WIDTHS)
    for recipe in (recipes.get("ppo"), recipes.get("dapo_top_entropy"), Recipe("otb", ratio="token_clip")):
        assert weighting_names(recipe) == ()
    exact = get("gae", lam=0.99993333)  # a label rounds it: it is measured as it is
    assert exact.composition == "gae(lam=0.999933)"
    assert get(own_name(exact)) == exact
    assert own_name(get("gae(lam=0.9)")) == "gae(lam=0.9)"


def with_values(spread=0.0):
    """Two prompts of two completions with state values, and ratios where they vary."""
    rng = np.random.default_rng(0)
    logprobs = -rng.random((4, 3))
    old = logprobs + spread * rng.normal(size=(4, 3)) if spread else None
    fields = {"ref_logprobs": logprobs - 0.1, "entropy": -logprobs, "values": rng.random((4, 3))}
    return Batch([1, 0, 0, 1], [3, 2, 3, 1], [0, 0, 1, 1], logprobs=logprobs, old_logprobs=old, **fields)


def test_which_estimators_have_advantages_of_their_own_completion_alone():
    def names(labels, batch):
        found = (own_advantages(get(label), batch) for label in labels)
        return [None if one is None else own_name(one) for one in found]

    of_values = ("gae", "gae(lam=0.5)", "vine", "recipe:ppo", "recipe:ppo(advantage=vine)")
    assert names(of_values, with_values()) == ["gae", "gae(lam=0.5)", "vine", "gae", "vine"]
    assert names(of_values, with_values(0.3)) == ["gae", "gae(lam=0.5)", "vine", None, None]  # the ratios of PPO vary
    assert names(of_values, Batch([1, 0], [1, 1], [0, 0])) == [None] * 5  # without values
    others = ("rloo", "otb", "gae(whiten=True)", "recipe:grpo", "remax", "causal_optimal")
    others += tuple(
        f"recipe:ppo({one})" for one in ("kl=in_reward", "kl=in_loss(beta=0.5)", "mask=top_entropy(threshold=0.5)")
    )
    assert names(others, with_values()) == [None] * len(others)
    held = ("gae(lam=0.9)", "vine", "token_clip[+]", "in_loss", "in_loss(beta=0.5)", "in_loss · top_entropy")
    assert [name for name in held if is_of_estimator(name)] == ["gae(lam=0.9)", "vine"]


def test_weightings_of_ratios_are_not_made_from_rollouts_alone():
    rollouts = Rollouts.from_sequences(
        [[1], [1]], [[1, 2], [3]], [1.0, 0.0], ["p", "p"], sampler_logprobs=[[-1, -1], [-1]]
    )
    assert list(est.token_weightings(["gae", "rloo"], rollouts, [np.ones(2), np.ones(1)])) == ["gae"]
    with pytest.raises(ValueError, match="recipe:grpo weights tokens by their log-probabilities: pass a measurement"):
        est.token_weightings(["recipe:grpo"], rollouts)
    with pytest.raises(ValueError, match="values"):
        est.token_weightings(["gae"], rollouts)
