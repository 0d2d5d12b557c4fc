"""Values bound to parameters, their ranges, labels, units, and functions of the user's as estimators."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from estimator_batches import GIVEN, columns_of
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, get, recipes, registry
from gradstats.estimators.estimator import RULES, SEQUENCE_SUM, Definition, Estimator, bind_parameters, unit_of
from gradstats.estimators.recipes.components import COMPONENTS, get_component

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])


def test_an_object_without_a_unit_is_taken_as_a_plain_sum():
    assert unit_of(Estimator(Definition(name="own", function=np.copy, unit=lambda parameters: "nats"), {})) == "nats"
    assert unit_of(SimpleNamespace(label="what a user's estimator must have, and no unit")) == SEQUENCE_SUM


@pytest.mark.parametrize(
    ("label", "unit"),
    [
        *((label, "") for label in ("rloo", "kimi(tau=0.5)", "james_stein", "pass_at_k", "gae")),
        *((label, " / group_std") for label in ("grpo", "pass_at_k(normalize=True)")),
        ("max_rl", " / group_mean"),
        *((one, " / batch_token_std") for one in ("reinforce_pp", "reinforce_pp_baseline", "gae(whiten=True)")),
    ],
)
def test_each_estimator_states_its_unit(label, unit):
    assert est.get(label).unit == est.recipes.named.unit_of_label(label) == f"sequence_sum{unit}"


def test_only_what_is_divided_by_a_spread_or_a_mean_has_another_unit():
    """Rewards and parameters of their unit ten times as large make weights ten times as large, and no other."""
    batch = est.Batch([1.0, 0.0, 3.0, 2.0], [3, 5, 4, 2], ["a", "a", "b", "b"])
    larger = batch.with_fields(rewards=10.0 * batch.rewards)
    for name in ("reinforce", "rloo", "group_mean", "grpo", "max_rl", "james_stein", "reinforce_pp_baseline"):
        estimator = est.get(name)
        factor = 10.0 if estimator.unit == "sequence_sum" else 1.0
        assert_allclose(estimator.weights(larger), factor * estimator.weights(batch), rtol=1e-4)


def double(data, factor: float, count: int = 2, loo: bool = False):
    return factor * count


def test_values_are_bound_by_position_and_by_name_and_defaults_filled_in():
    bound = bind_parameters("double", double, (3,), {"loo": True}, skip=1)
    assert bound == {"factor": 3.0, "count": 2, "loo": True}
    # a whole number becomes what is declared, so that 3 and 3.0 have one label
    assert [type(value) for value in bound.values()] == [float, int, bool]
    found = bind_parameters("double", double, (np.float64(0.5), 3), {}, skip=1)
    assert [type(value) for value in found.values()] == [float, int, bool]


def test_every_parameter_of_a_built_in_has_a_range():
    functions = [(one.function, 1) for one in registry.DEFINITIONS.values() if one.checked]
    functions += [(one.function, one.skip) for components in COMPONENTS.values() for one in components.values()]
    used = {name for function, skip in functions for name in list(inspect.signature(function).parameters)[skip:]}
    # a rule that no estimator or component uses is as wrong as a parameter without one
    assert used == set(RULES)


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (lambda: est.rloo(), "rloo"),
        (lambda: est.length_weighted(alpha=0.8, loo=True), "length_weighted(alpha=0.8, loo=True)"),
        (lambda: est.length_weighted(np.float64(0.5)), "length_weighted(alpha=0.5)"),
        (lambda: est.length_weighted(1 / 3), "length_weighted(alpha=0.333333)"),
        (lambda: est.constant(b=1), "constant(b=1)"),
        (lambda: get_component("ratio", "token_clip", eps_high=0.28), "token_clip(eps_high=0.28)"),
    ],
)
def test_labels_state_what_differs_from_the_default(made, label):
    assert made().label == repr(made()) == label
    assert len({made(), made(), est.kimi(tau=3)}) == 2  # those of the same definition and parameters are equal


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
        (lambda: est.grpo(eps=None), ValueError, "eps must be a finite number of at least 0, got None"),
        (lambda: get_component("ratio", "token_clip", dual_clip=0), ValueError, "dual_clip must be .* above 0, got 0"),
        (lambda: est.gae(gamma=1.5), ValueError, "gamma must be a number between 0 and 1"),
        (lambda: est.length_weighted(np.inf), ValueError, "alpha must be a finite number"),
        (lambda: est.otb(energy="true"), ValueError, "energy must be 'logit' or 'exact'"),
        (lambda: est.constant(b="best"), ValueError, "b must be a number or 'optimal', got 'best'"),
    ],
)  # fmt: skip
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()


SOURCE = """
from gradstats import estimators

def half(batch, factor=0.5):
    return factor * batch.rewards

@estimators.register("own_ones", level="token", expected_scale=1.0, bias="none")
def ones(batch):
    return 1.0 * batch.mask
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_estimators.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))
    yield
    sys.modules.pop("own_estimators", None)


@pytest.mark.usefixtures("own_module")
def test_a_function_in_the_working_directory_is_an_estimator_and_the_advantage_of_a_recipe():
    half = est.get("own_estimators:half(factor=3)")
    assert np.array_equal(half.advantages(BATCH), 3 * BATCH.rewards)
    assert (half.label, half.level, half.expected_scale(4)) == ("own_estimators:half(factor=3)", "sequence", None)
    with pytest.raises(TypeError, match="has no parameter 'factr': did you mean 'factor'"):
        est.get("own_estimators:half(factr=3)")
    recipe = est.get("recipe:grpo(advantage='own_estimators:half(factor=2)')")
    assert recipe.advantage.label == "own_estimators:half(factor=2)"
    assert np.array_equal(recipe.advantage.advantages(BATCH), 2 * BATCH.rewards)
    # what was registered of a function holds
    ones = est.get("own_estimators:ones")
    assert (ones.level, ones.expected_scale(4), ones.label) == ("token", 1.0, "own_estimators:ones")
    assert np.array_equal(ones.advantages(BATCH), BATCH.mask)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("name", ["absent_module:f", "own_estimators:absent"])
def test_the_error_says_where_it_was_looked_for(name: str, tmp_path):
    with pytest.raises(ImportError, match=f"{name}.*{tmp_path if name.startswith('absent') else 'absent'}"):
        est.get(name)


class TestCompletionsWithoutACountedToken:
    """They have weight 0, and their rewards vote where completions do."""

    MASK = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]]) == 1
    BATCH = Batch([1, 0, 4, 2, 5, 3, 1, 2], MASK.sum(axis=1), [*"aaaa", *"bb", *"cc"], MASK)

    @pytest.mark.parametrize(
        ("label", "expected"),
        [
            ("rloo", [-1, -7 / 3, 0, 1 / 3, 0, -2, 0, 0]),
            ("group_mean", [-3 / 4, -7 / 4, 0, 1 / 4, 0, -1, 0, 0]),
            ("batch_mean", [1 - 9 / 4, -9 / 4, 0, 2 - 9 / 4, 0, 3 - 9 / 4, 0, 0]),
            # weighted by length: 2, 2, 0, 1 and 0, 3
            ("token_mean", [1 - 4 / 5, -4 / 5, 0, 2 - 4 / 5, 0, 0, 0, 0]),
            ("token_mean(loo=True)", [1 - 2 / 3, -4 / 3, 0, 2 - 1 / 2, 0, 0, 0, 0]),
            ("token_mean(loo=True, singleton=reward)", [1 - 2 / 3, -4 / 3, 0, 2 - 1 / 2, 0, 3, 0, 0]),
            ("length_weighted(alpha=0.5, loo=True)", [1 - 2 / 3, -4 / 3, 0, 2 - 1 / 2, 0, 0, 0, 0]),
            ("length_weighted(alpha=-0.5)", [-1 / 4, -5 / 4, 0, 3 / 4, 0, 0, 0, 0]),
            ("length_weighted(alpha=0)", [-3 / 4, -7 / 4, 0, 1 / 4, 0, -1, 0, 0]),
            ("pass_at_k", [0, 0, 0, 0, 0, 0, 0, 0]),
        ],
    )
    def test_by_hand(self, label, expected):
        assert_allclose(get(label).advantages(self.BATCH), expected, atol=1e-12)
        sizes = self.BATCH.group_sizes[self.BATCH.group_index]
        assert_allclose(get(label).weights(self.BATCH), np.array(expected) / sizes, atol=1e-12)

    @pytest.mark.parametrize("label", recipes.names())
    def test_leave_every_weight_finite_and_have_none(self, label):
        rng = np.random.default_rng(0)
        tokens = {name: -rng.random(self.MASK.shape) for name in ("logprobs", "ref_logprobs")}
        tokens["old_logprobs"] = tokens["logprobs"] + 1e-4 * rng.random(self.MASK.shape)
        further = ("entropy", "sum_pi_squared", "values", "token_energy", "token_cross")
        tokens |= {name: rng.random(self.MASK.shape) for name in further}
        batch = self.BATCH.with_fields(
            **tokens, sq_norms=self.MASK.sum(axis=1), greedy_rewards=np.ones(8), truncated=np.arange(8) == 6,
            columns=columns_of(self.BATCH.groups, self.MASK.shape[1]),
        )  # fmt: skip
        weights = recipes.get(label, **GIVEN.get(label, {})).token_weights(batch)
        assert np.isfinite(weights).all()
        assert not weights[~self.MASK].any()
        assert weights.any() or label == "pass_at_k"  # the best of every group has no token

    @pytest.mark.parametrize(
        ("aggregation", "expected"),
        [
            ("sequence_mean", [1 / 8, 1 / 8, 0, 1 / 4, 0, 1 / 6, 0, 0]),
            ("token_mean", [1 / 5, 1 / 5, 0, 1 / 5, 0, 1 / 3, 0, 0]),
            ("token_mean(scope=batch)", [3 / 8, 3 / 8, 0, 3 / 8, 0, 3 / 8, 0, 0]),
            ("constant(max_tokens=10)", [1 / 40, 1 / 40, 0, 1 / 40, 0, 1 / 20, 0, 0]),
            ("delta_l", [1 / 4, 1 / 4, 0, 1 / 2, 0, 1, 0, 0]),
        ],
    )
    def test_count_as_completions_and_not_as_tokens(self, aggregation, expected):
        ones = self.BATCH.with_fields(rewards=np.ones(8))
        weights = recipes.get("reinforce", aggregation=aggregation).weights(ones)
        assert_allclose(weights, expected, atol=1e-12)

    @pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "token_mean(scope=batch)", "constant"])
    def test_are_what_truncated_ones_that_are_masked_become(self, aggregation):
        """By default the filter is the empty mask, whatever the aggregation."""
        whole = Batch([1, 0, 4, 2, 5, 3], [2, 2, 3, 1, 3, 3], [*"aaaa", *"bb"], truncated=[0, 0, 1, 0, 1, 0])
        mask = whole.mask & ~whole.truncated[:, None]
        masked = whole.with_fields(mask=mask, lengths=mask.sum(axis=1))
        filtered = recipes.get("grpo", aggregation=aggregation, filter="mask_truncated").weights(whole)
        assert_allclose(filtered, recipes.get("grpo", aggregation=aggregation).weights(masked), rtol=1e-12, atol=0)
