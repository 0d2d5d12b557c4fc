"""Components of recipes by name and by label, and the errors for wrong ones."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.recipes.components import COMPONENTS, get_component, parameter_names
from gradstats.estimators.recipes.ratio import token_clip


def test_a_label_gives_the_component_with_its_parameters():
    clip = get_component("ratio", "token_clip(eps_high=0.28)")
    assert (clip.name, clip.label, repr(clip)) == (
        "token_clip",
        "token_clip(eps_high=0.28)",
        "token_clip(eps_high=0.28)",
    )
    assert clip.parameters == {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": None}
    assert clip == get_component("ratio", "token_clip", eps_high=0.28) == token_clip(eps_high=0.28)
    assert get_component("ratio", clip) is clip
    # values given beside a label replace its own
    assert get_component("ratio", "token_clip(eps_high=0.28)", eps_high=0.3).parameters["eps_high"] == 0.3


def test_a_component_acts_on_its_data_with_its_parameters():
    batch = Batch([2, 0, 1, 1], [1, 1, 1, 1], ["a", "a", "b", "b"])
    assert_array_equal(get_component("filter", "dynamic_sampling")(batch), [True, True, False, False])
    # two completions in a group, of at most ten tokens
    assert_allclose(get_component("aggregation", "constant(max_tokens=10)")(batch), [1 / 20] * 4)


def test_the_parameters_of_a_component_are_those_after_its_data():
    assert parameter_names("ratio", "token_clip") == {"eps_low": False, "eps_high": False, "dual_clip": False}
    assert parameter_names("ratio", "log_ratio_penalty") == {"tau": True}
    assert parameter_names("filter", "none") == {}


def test_every_kind_has_a_component_that_does_nothing_but_aggregation():
    without = {kind for kind, components in COMPONENTS.items() if "none" not in components}
    assert without == {"aggregation"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
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
    ],
)
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()
