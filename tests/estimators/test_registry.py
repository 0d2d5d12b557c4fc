"""Estimators by name: the registry, labels, names in figures, and the page that lists them."""

import re
from pathlib import Path

import numpy as np
import pytest
from programs import program

from gradstats import estimators as est
from gradstats.estimators import Batch, recipes, registry
from gradstats.estimators.by_label import get_all, with_parameter
from gradstats.estimators.display_names import distinct_names, in_words, uses_own_sample
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import AlongCompletions

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))


def test_labels_can_be_read_back():
    for estimator in (est.rloo(), est.constant(b=0.25), est.token_mean(scope="batch"), est.otb(energy="exact")):
        assert est.get(estimator.label) == estimator
    assert est.get("token_mean(scope='batch')").parameters["scope"] == "batch"
    assert [one.label for one in get_all(["rloo", est.get("opo")])] == ["rloo", "opo"]


def test_aliases_and_objects():
    assert est.get("opo").name == est.get("cwm").name == est.get("opo").composition == "token_mean"
    assert len({est.get("opo"), est.get("token_mean"), est.token_mean()}) == 1
    assert est.get("ogb").name == "norm_weighted"
    for one in (est.rloo(), recipes.get("grpo")):
        assert est.get(one) is one
    assert "opo" not in est.names()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (lambda name=name: est.get(name), KeyError, hint)
            for name, hint in (
                ("rlo", "no estimator is called 'rlo': did you mean 'rloo'"),
                ("dapo", "did you mean 'recipe:dapo'"),
                ("cispoo", "did you mean 'recipe:cispo'"),
                ("group_maen", "did you mean 'group_mean'"),
                ("lenght_weighted(alpha=1)", "did you mean 'length_weighted'"),
                ("recipe:grop", "did you mean 'recipe:grpo'"),
                ("vcpo", "`gradstats list estimators` shows all \\d+; write your own as module:function"),
                ("recipe:vapo2", "`gradstats list recipes` shows all \\d+"),
            )
        ),
        (lambda: est.get("kimi(0.5)"), ValueError, "write it as name"),
        (lambda: est.get("kimi(tau="), ValueError, "cannot read 'kimi"),
        (lambda: est.get(est.rloo(), loo=False), TypeError, "has its parameters already"),
        (lambda: est.get(recipes.get("grpo"), loo=True), TypeError, "recipe:grpo has .* already: give loo with"),
        (lambda: get_all("rloo"), TypeError, r"must be a list of labels, got the text 'rloo': write \['rloo'\]"),
        (lambda: with_parameter("vine", "k", 1.5), ValueError, r"k must be a whole number of at least 1, got 1\.5"),
        (lambda: with_parameter("rloo", "alpha", 0.5), TypeError, "estimator rloo has no parameter 'alpha'"),
        (
            lambda: with_parameter(AlongCompletions(est.rloo()), "loo", 1.0), TypeError,
            "rloo is an object without parameters of its own",
        ),
    ],
)  # fmt: skip
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("clean_registry")
def test_your_own():
    @est.register("centred_at", expected_scale=1.0, baseline="a number")
    def centred_at(batch, centre=0.5):
        return batch.rewards - centre

    assert list(centred_at(BATCH)) == [0.5, -0.5, 1.5]
    estimator = est.get("centred_at", centre=1.0)
    assert estimator.label == "centred_at(centre=1)"
    assert list(estimator.advantages(BATCH)) == [0, -1, 1]
    assert list(estimator.weights(BATCH)) == [0, -1, 0.5]
    assert estimator.expected_scale(7) == 1.0
    assert isinstance(estimator, Weighting)
    assert "centred_at" in est.names()
    assert "a number" in set(est.table()["baseline"])
    est.register("own_mean", expected_scale=lambda size: (size - 1) / size)(centred_at)
    assert est.get("own_mean").expected_scale(4) == 0.75
    est.register("ones", level="token", needs=("logprobs",))(lambda batch: np.ones(batch.mask.shape))
    with pytest.raises(ValueError, match="ones needs logprobs"):
        est.get("ones").advantages(BATCH)
    scored = BATCH.with_fields(logprobs=-np.ones((3, 3)))
    assert np.array_equal(est.get("ones").advantages(scored), BATCH.mask)
    assert est.get("ones").weights(scored).tolist() == [[0.5, 0, 0], [1, 1, 1], [0.5, 0.5, 0]]


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "rloo"}, "'rloo' is registered already: choose another name"),
        ({"name": "opo"}, "'opo' is registered already: choose another name"),
        ({"name": "short"}, "'short' is registered already: choose another name"),
        ({"name": "bad", "needs": ("sq_norm",)}, r"needs names 'sq_norm', .*did you mean 'sq_norms'"),
        ({"name": "bad", "level": "word"}, "level must be"),
    ],
)
def test_your_own_is_held_to_its_name_shape_and_words(fields, message):
    est.register("short")(lambda batch: batch.rewards[:-1])
    with pytest.raises(ValueError, match=r"short returned advantages of shape \(2,\).*returns \(3,\)"):
        est.get("short").advantages(BATCH)
    with pytest.raises(ValueError, match=message):
        est.register(**fields)(lambda batch: batch.rewards)


def test_table_has_a_row_for_each():
    table = est.table()
    assert list(table["name"]) == est.names()
    assert set(table["aggregation"]) == {"sequence_sum"}
    assert not table.isna().any().any()
    assert "2402.14740" in (est.rloo.__doc__ or "")


@pytest.fixture(scope="module")
def page_module():
    return program("docs/estimators_page.py")


def test_page_is_current(page_module):
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    assert page_module.render(page) == page, "run: python docs/estimators_page.py"
    with pytest.raises(ValueError, match="one pair of markers for 'estimators', found 0"):
        page_module.render(re.sub("generated: estimators", "gone", page))


@pytest.mark.parametrize(
    "label",
    [
        "rloo", "opo", "length_weighted(alpha=0.80,loo=True)", "mine:half(factor=3)", "recipe:grpo", "recipe:rloo",
        "recipe:dapo(loo=True)", "recipe:grpo(kl=in_loss(beta=0.01), eps=1e-4)",
        "recipe:custom(advantage=rloo, aggregation=token_mean)",
    ],
)  # fmt: skip
def test_a_label_is_kept_as_given(label: str, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def half(batch, factor=0.5):\n    return factor * batch.rewards\n")
    monkeypatch.chdir(tmp_path)
    found = est.get(label)
    assert found.label == label
    assert len(found.weights(BATCH.with_fields(logprobs=-np.ones((3, 3)), ref_logprobs=-np.ones((3, 3))))) == 3
    assert hash(found) == hash(est.get(label))
    assert recipes.named.unit_of_label(label) == found.unit
    if label.startswith("recipe:"):
        assert recipes.get(label) == recipes.get(label.removeprefix("recipe:")) == found


@pytest.mark.parametrize(
    ("estimator", "parameter", "value", "label"),
    [
        ("length_weighted(loo=True)", "alpha", 0.25, "length_weighted(alpha=0.25, loo=True)"),
        ("length_weighted(alpha=3, loo=True)", "alpha", 1.0, "length_weighted(alpha=1, loo=True)"),
        (est.kimi(tau=2.0, loo=True), "tau", 0.5, "kimi(tau=0.5, loo=True)"),
        ("recipe:dapo(loo=True)", "eps_high", 0.4, "recipe:dapo(loo=True, eps_high=0.4)"),
        (recipes.get("dapo(loo=True)"), "eps_high", 0.4, "recipe:dapo(loo=True, eps_high=0.4)"),
        ("recipe:grpo", "clip_width", 0.1, "recipe:grpo(eps_low=0.1, eps_high=0.1)"),
        ("vine", "k", 4.0, "vine(k=4)"),  # a whole number is an integer
    ],
)
def test_a_label_an_estimator_and_a_recipe_take_the_value(estimator, parameter, value, label):
    found = with_parameter(estimator, parameter, value)
    assert found.label == label
    assert found == est.get(label)


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
    words = [in_words(name) for name in est.names()]
    assert not set(words) & (set(est.names()) - {"constant", "discounted", "asymmetric"})
    assert [name for name in recipes.names() if in_words(f"recipe:{name}").startswith("recipe:")] == []
    assert len(set(words)) == len(words)


def test_no_two_estimators_of_a_figure_share_a_name():
    assert distinct_names(["rloo", "recipe:rloo"]) == {"rloo": "rloo", "recipe:rloo": "recipe:rloo"}
    assert distinct_names(["rloo", "gae"], {"gae": "ours", "vine": "–"}) == {"rloo": "RLOO", "gae": "ours"}


@pytest.mark.parametrize(
    ("own", "labels"),
    [
        (True, ("group_mean", "length_weighted(alpha=0.8)", "recipe:norm_weighted", "rloo(loo=False)")),
        (False, ("length_weighted(alpha=0.8, loo=True)", "recipe:grpo", "rloo", "reinforce", "rloo(", "mine:weights")),
    ],
)
def test_own_sample_is_known_from_the_label(own, labels):
    assert [uses_own_sample(label) for label in labels] == [own] * len(labels)


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_estimator_may_bring_its_words():
    est.register("half_reward", display="half")(lambda batch, factor=0.5: factor * batch.rewards)
    est.register("third_reward")(lambda batch: batch.rewards / 3)
    assert in_words("half_reward(factor=0.2)") == "half, factor = 0.2"
    assert in_words("third_reward") == "third_reward"
