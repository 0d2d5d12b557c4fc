"""Names of estimators in words: every registered one, parameters, and what keeps its label."""

from __future__ import annotations

import pytest

from gradstats import estimators
from gradstats.estimators import recipes, registry
from gradstats.estimators.display_names import distinct_names, in_words, uses_own_sample


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("rloo", "RLOO"),
        ("length_weighted(alpha=0.8, loo=True)", "length-weighted, α = 0.8, leave-one-out"),
        ("length_weighted(alpha=within_prompt, loo=True)", "length-weighted, within-prompt α, leave-one-out"),
        ("asymmetric(delta=-0.1)", "asymmetric, δ = −0.1"),
        ("constant(b=optimal)", "constant, optimal b"),
        ("token_mean(loo=False)", "token mean, own sample"),
        ("otb(energy=exact, loo=True)", "OTB, exact energy, leave-one-out"),
        ("causal_optimal(scope=batch)", "causal optimal, over the batch"),
        ("rloo(off_policy=True)", "RLOO, off-policy"),
        ("gae(whiten=False)", "GAE, no whiten"),
        ("discounted(baseline=token_mean, gamma=0.9)", "discounted, token mean baseline, γ = 0.9"),
        ("recipe:grpo(eps_high=0.28)", "GRPO, ε high = 0.28"),
        ("recipe:norm_weighted(loo=True)", "norm-weighted, leave-one-out"),
        ("mine:weights(alpha=2)", "mine:weights(alpha=2)"),
        ("weights.py:mine", "weights.py:mine"),
        ("learned exponent", "learned exponent"),
        ("grpo[group_mean · group_std]", "grpo[group_mean · group_std]"),
        ("rloo(", "rloo("),
    ],
)
def test_labels_become_words_where_they_are_known(label, name):
    assert in_words(label) == name


def test_every_registered_estimator_and_method_has_words():
    words = [in_words(name) for name in estimators.names()]
    assert not set(words) & (set(estimators.names()) - {"constant", "discounted", "asymmetric"})
    assert [name for name in recipes.names() if in_words(f"recipe:{name}").startswith("recipe:")] == []
    assert len(set(words)) == len(words)


def test_no_two_estimators_of_a_figure_share_a_name():
    assert distinct_names(["rloo", "recipe:rloo"]) == {"rloo": "rloo", "recipe:rloo": "recipe:rloo"}
    assert distinct_names(["rloo", "gae"], {"gae": "ours", "vine": "–"}) == {"rloo": "RLOO", "gae": "ours"}


@pytest.mark.parametrize(
    ("label", "own"),
    [
        ("group_mean", True),
        ("length_weighted(alpha=0.8)", True),
        ("length_weighted(alpha=0.8, loo=True)", False),
        ("recipe:norm_weighted", True),
        ("recipe:grpo", False),
        ("rloo", False),
        ("rloo(loo=False)", True),
        ("reinforce", False),
        ("mine:weights", False),
        ("unknown", False),
        ("rloo(", False),
    ],
)
def test_own_sample_is_known_from_the_label(label, own):
    assert uses_own_sample(label) is own


def test_a_registered_estimator_may_bring_its_words(monkeypatch):
    monkeypatch.setattr("gradstats.estimators.registry.DEFINITIONS", dict(registry.DEFINITIONS))
    estimators.register("half_reward", display="half")(lambda batch, factor=0.5: factor * batch.rewards)
    estimators.register("third_reward")(lambda batch: batch.rewards / 3)
    assert in_words("half_reward(factor=0.2)") == "half, factor = 0.2"
    assert in_words("third_reward") == "third_reward"
