"""An estimator at another value of a parameter."""

import pytest

from gradstats import estimators as est
from gradstats.estimators import recipes
from gradstats.estimators.by_label import with_parameter
from gradstats.estimators.ratios import AlongCompletions


def test_a_label_an_estimator_and_a_recipe_take_the_value():
    assert with_parameter("length_weighted(loo=True)", "alpha", 0.25) == est.length_weighted(alpha=0.25, loo=True)
    assert with_parameter("length_weighted(alpha=3, loo=True)", "alpha", 1.0) == est.length_weighted(
        alpha=1.0, loo=True
    )
    assert with_parameter(est.kimi(tau=2.0, loo=True), "tau", 0.5) == est.kimi(tau=0.5, loo=True)
    assert with_parameter("recipe:dapo(loo=True)", "eps_high", 0.4).label == "recipe:dapo(loo=True, eps_high=0.4)"
    assert with_parameter(recipes.get("dapo(loo=True)"), "eps_high", 0.4).label == (
        "recipe:dapo(loo=True, eps_high=0.4)"
    )


def test_whole_numbers_are_integers():
    assert with_parameter("vine", "k", 4.0).parameters["k"] == 4
    with pytest.raises(ValueError, match=r"k must be a whole number of at least 1, got 1\.5"):
        with_parameter("vine", "k", 1.5)


def test_the_width_of_a_clip_sets_both_ends():
    recipe = with_parameter("recipe:grpo", "clip_width", 0.1)
    assert recipe.label == "recipe:grpo(eps_low=0.1, eps_high=0.1)"


def test_refusals():
    with pytest.raises(TypeError, match="estimator rloo has no parameter 'alpha'"):
        with_parameter("rloo", "alpha", 0.5)
    with pytest.raises(TypeError, match="rloo is an object without parameters of its own"):
        with_parameter(AlongCompletions(est.rloo()), "loo", 1.0)
