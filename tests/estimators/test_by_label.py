"""Labels of baselines, published methods and functions of the user's, and the hints for wrong ones."""

from __future__ import annotations

import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch, recipes
from gradstats.estimators.by_label import get_all, with_parameter
from gradstats.estimators.ratios import AlongCompletions

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def half(batch, factor=0.5):\n    return factor * batch.rewards\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "label",
    [
        "rloo", "opo", "length_weighted(alpha=0.80,loo=True)", "recipe:grpo", "recipe:dapo(loo=True)",
        "mine:half(factor=3)",
    ],
)  # fmt: skip
def test_a_label_is_kept_as_given(label: str, own_module):
    found = est.get(label)
    assert found.label == label
    assert found.weights(BATCH).shape == (3,)
    assert hash(found) == hash(est.get(label))


def test_what_an_estimator_is_composed_of_does_not_depend_on_its_label():
    assert est.get("opo") == est.get("token_mean") == est.token_mean()
    assert est.get("opo").composition == "token_mean"
    assert len({est.get("opo"), est.get("token_mean")}) == 1
    assert est.get("kimi", tau=2).label == "kimi(tau=2)"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dapo", "did you mean 'recipe:dapo'"),
        ("gspo", "did you mean 'recipe:gspo'"),
        ("cispoo", "did you mean 'recipe:cispo'"),
        ("group_maen", "did you mean 'group_mean'"),
        ("lenght_weighted(alpha=1)", "did you mean 'length_weighted'"),
        ("recipe:grop", "did you mean 'recipe:grpo'"),
        ("vcpo", "known are .*recipe:dapo.*, and module:function"),
        ("recipe:vapo2", "known are reinforce"),
    ],
)
def test_hints_name_what_was_meant_or_list_what_there_is(name: str, hint: str):
    with pytest.raises(KeyError, match=hint):
        est.get(name)


def test_objects_pass_through():
    recipe = est.recipes.get("grpo")
    assert est.get(recipe) is recipe
    with pytest.raises(TypeError, match="recipe:grpo has its parameters already: give loo with a name"):
        est.get(recipe, loo=True)


def test_a_single_label_is_not_taken_for_a_list_of_letters():
    assert [one.label for one in get_all(["rloo", est.get("opo")])] == ["rloo", "opo"]
    with pytest.raises(TypeError, match=r"must be a list of labels, got the text 'rloo': write \['rloo'\]"):
        get_all("rloo")


@pytest.mark.parametrize(
    ("estimator", "parameter", "value", "label"),
    [
        ("length_weighted(loo=True)", "alpha", 0.25, "length_weighted(alpha=0.25, loo=True)"),
        ("length_weighted(alpha=3, loo=True)", "alpha", 1.0, "length_weighted(alpha=1, loo=True)"),
        (est.kimi(tau=2.0, loo=True), "tau", 0.5, "kimi(tau=0.5, loo=True)"),
        ("recipe:dapo(loo=True)", "eps_high", 0.4, "recipe:dapo(loo=True, eps_high=0.4)"),
        (recipes.get("dapo(loo=True)"), "eps_high", 0.4, "recipe:dapo(loo=True, eps_high=0.4)"),
        ("recipe:grpo", "clip_width", 0.1, "recipe:grpo(eps_low=0.1, eps_high=0.1)"),
    ],
)
def test_a_label_an_estimator_and_a_recipe_take_the_value(estimator, parameter, value, label):
    found = with_parameter(estimator, parameter, value)
    assert found.label == label
    assert found == est.get(label)


def test_whole_numbers_are_integers():
    assert with_parameter("vine", "k", 4.0).parameters["k"] == 4
    with pytest.raises(ValueError, match=r"k must be a whole number of at least 1, got 1\.5"):
        with_parameter("vine", "k", 1.5)


def test_refusals():
    with pytest.raises(TypeError, match="estimator rloo has no parameter 'alpha'"):
        with_parameter("rloo", "alpha", 0.5)
    with pytest.raises(TypeError, match="rloo is an object without parameters of its own"):
        with_parameter(AlongCompletions(est.rloo()), "loo", 1.0)
