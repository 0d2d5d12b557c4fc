"""Values bound to parameters, their ranges, and labels."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators.estimator import RULES, bind_parameters, check_parameters, describe, suggest
from gradstats.estimators.recipes.components import COMPONENTS
from gradstats.estimators.registry import DEFINITIONS


def double(data, factor: float, count: int = 2, loo: bool = False):
    return factor * count


def test_values_are_bound_by_position_and_by_name_and_defaults_filled_in():
    bound = bind_parameters("double", double, (3,), {"loo": True}, skip=1)
    assert bound == {"factor": 3.0, "count": 2, "loo": True}
    # a whole number becomes what is declared, so that 3 and 3.0 have one label
    assert isinstance(bound["factor"], float)
    assert isinstance(bind_parameters("double", double, (np.float64(0.5), 3), {}, skip=1)["factor"], float)
    assert isinstance(bind_parameters("double", double, (1, 3), {}, skip=1)["count"], int)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, "double needs a value for factor: factor has no default"),
        ((1, 2, True, 4), {}, r"double takes 3 parameters \(factor, count, loo\), got 4"),
        ((1,), {"factor": 2}, "double got 'factor' twice, by position and by name"),
        ((1,), {"cuont": 2}, "double has no parameter 'cuont': did you mean 'count'?"),
    ],
)
def test_values_that_cannot_be_bound_are_named(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        bind_parameters("double", double, arguments, keywords, skip=1)


def test_values_out_of_range_are_named_and_none_stands_for_a_default_of_none():
    def clip(data, eps_low: float = 0.2, dual_clip: float | None = None):
        return data

    check_parameters("clip", clip, {"eps_low": 0.0, "dual_clip": None})
    with pytest.raises(ValueError, match="^clip: dual_clip must be a finite number above 0, got 0$"):
        check_parameters("clip", clip, {"eps_low": 0.0, "dual_clip": 0})
    with pytest.raises(ValueError, match="^clip: eps_low must be a finite number of at least 0, got None$"):
        check_parameters("clip", clip, {"eps_low": None, "dual_clip": None})


def test_labels_state_what_differs_from_the_default():
    assert describe("double", double, {"factor": 1 / 3, "count": 2, "loo": False}) == "double(factor=0.333333)"
    assert describe("double", double, {"factor": 2.0, "count": 3, "loo": True}) == "double(factor=2, count=3, loo=True)"


def test_the_nearest_name_or_all_of_them():
    assert suggest("lo", ["loo", "tau"]) == "did you mean 'loo'?"
    assert suggest("xyz", ["tau", "loo"]) == "known are loo, tau"


def test_every_parameter_of_a_built_in_has_a_range():
    functions = [definition.function for definition in DEFINITIONS.values() if definition.checked]
    skipped = [1] * len(functions)
    for components in COMPONENTS.values():
        functions += [definition.function for definition in components.values()]
        skipped += [definition.skip for definition in components.values()]
    used = {
        name
        for f, skip in zip(functions, skipped, strict=True)
        for name in list(inspect.signature(f).parameters)[skip:]
    }
    # a rule that no estimator or component uses is as wrong as a parameter without one
    assert used == set(RULES)


def test_labels_state_parameters():
    assert est.rloo().label == "rloo"
    assert est.length_weighted(alpha=0.8, loo=True).label == "length_weighted(alpha=0.8, loo=True)"
    assert est.length_weighted(np.float64(0.5)).label == "length_weighted(alpha=0.5)"
    assert est.constant(b=1).label == "constant(b=1)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: est.get("rloo", lo=True), TypeError, "has no parameter 'lo': did you mean 'loo'"),
        (lambda: est.get("reinforce", loo=True), TypeError, "it has no parameters"),
        (lambda: est.get("kimi"), TypeError, "estimator kimi needs a value for tau"),
        (lambda: est.length_weighted(), TypeError, "needs a value for alpha"),
        (lambda: est.length_weighted(0.8, alpha=1.0), TypeError, "got 'alpha' twice"),
        (lambda: est.reinforce(1), TypeError, "takes 0 parameters"),
        (lambda: est.rloo(singleton="none"), ValueError, "must be 'zero' or 'reward' or 'nan'"),
        (lambda: est.token_mean(scope="all"), ValueError, "scope must be 'group' or 'batch'"),
        (lambda: est.rloo(loo=1), ValueError, "loo must be True or False, got 1"),
        (lambda: est.kimi(tau=0), ValueError, "tau must be a finite number above 0"),
        (lambda: est.grpo(eps=-1), ValueError, "eps must be a finite number of at least 0"),
        (lambda: est.grpo(ddof=-1), ValueError, "ddof must be a whole number of at least 0"),
        (lambda: est.vine(k=0), ValueError, "k must be a whole number of at least 1"),
        (lambda: est.gae(gamma=1.5), ValueError, "gamma must be a number between 0 and 1"),
        (lambda: est.length_weighted(np.inf), ValueError, "alpha must be a finite number"),
        (lambda: est.otb(energy="true"), ValueError, "energy must be 'logit' or 'exact'"),
        (lambda: est.constant(b="best"), ValueError, "b must be a number or 'optimal', got 'best'"),
    ],
)  # fmt: skip
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()


def test_letters_that_changed_places_are_the_likeliest_slip():
    assert suggest("gpro", ["gspo", "grpo", "ppo"]) == "did you mean 'grpo'?"
