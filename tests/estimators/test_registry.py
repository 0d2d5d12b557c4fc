"""Names, labels, parameters and user-defined estimators."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.estimators.registry import DEFINITIONS

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])


@pytest.fixture
def clean_registry():
    before = dict(DEFINITIONS)
    yield
    DEFINITIONS.clear()
    DEFINITIONS.update(before)


def test_labels_tell_parameters():
    assert estimators.rloo().label == "rloo"
    assert estimators.length_weighted(alpha=0.8, loo=True).label == "length_weighted(alpha=0.8, loo=True)"
    assert estimators.length_weighted(np.float64(0.5)).label == "length_weighted(alpha=0.5)"
    assert estimators.constant(b=1).label == "constant(b=1)"


def test_labels_can_be_read_back():
    for estimator in (
        estimators.rloo(),
        estimators.length_weighted(0.8, loo=True),
        estimators.constant(b=0.25),
        estimators.token_mean(scope="batch"),
        estimators.otb(energy="exact", zero_tail=False),
    ):
        assert estimators.get(estimator.label) == estimator
    assert estimators.get("token_mean(scope='batch')").parameters["scope"] == "batch"


def test_aliases_and_objects():
    assert estimators.get("opo").name == estimators.get("cwm").name == "token_mean"
    assert estimators.get("ogb").name == "norm_weighted"
    rloo = estimators.rloo()
    assert estimators.get(rloo) is rloo
    assert "opo" not in estimators.names()
    assert len({estimators.rloo(), estimators.rloo(), estimators.group_mean()}) == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: estimators.get("rlo"), KeyError, "no estimator is called 'rlo': did you mean 'rloo'"),
        (lambda: estimators.get("zzzzzz"), KeyError, "known are "),
        (lambda: estimators.get("rloo", lo=True), TypeError, "has no parameter 'lo': did you mean 'loo'"),
        (lambda: estimators.get("reinforce", loo=True), TypeError, "it has no parameters"),
        (lambda: estimators.get("kimi"), TypeError, "estimator kimi needs a value for tau"),
        (lambda: estimators.length_weighted(), TypeError, "needs a value for alpha"),
        (lambda: estimators.length_weighted(0.8, alpha=1.0), TypeError, "got 'alpha' twice"),
        (lambda: estimators.reinforce(1), TypeError, "takes 0 parameters"),
        (lambda: estimators.rloo(singleton="none"), ValueError, "must be 'zero' or 'reward' or 'nan'"),
        (lambda: estimators.token_mean(scope="all"), ValueError, "scope must be 'group' or 'batch'"),
        (lambda: estimators.rloo(loo=1), ValueError, "loo must be True or False, got 1"),
        (lambda: estimators.kimi(tau=0), ValueError, "tau must be a finite number above 0"),
        (lambda: estimators.grpo(eps=-1), ValueError, "eps must be a finite number of at least 0"),
        (lambda: estimators.grpo(ddof=-1), ValueError, "ddof must be a whole number of at least 0"),
        (lambda: estimators.vine(k=0), ValueError, "k must be a whole number of at least 1"),
        (lambda: estimators.gae(gamma=1.5), ValueError, "gamma must be a number between 0 and 1"),
        (lambda: estimators.length_weighted(np.inf), ValueError, "alpha must be a finite number"),
        (lambda: estimators.otb(energy="true"), ValueError, "energy must be 'logit' or 'exact'"),
        (lambda: estimators.constant(b="best"), ValueError, "b must be a number or 'optimal', got 'best'"),
        (lambda: estimators.get("kimi(0.5)"), ValueError, "write it as name"),
        (lambda: estimators.get("kimi(tau="), ValueError, "cannot read 'kimi"),
        (lambda: estimators.get(estimators.rloo(), loo=False), TypeError, "has its parameters already"),
    ],
)  # fmt: skip
def test_bad_calls(call, error: type, message: str):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("clean_registry")
def test_your_own():
    @estimators.register("centred_at", expected_scale=1.0, baseline="a number")
    def centred_at(batch, centre=0.5):
        return batch.rewards - centre

    assert list(centred_at(BATCH)) == [0.5, -0.5, 1.5]
    estimator = estimators.get("centred_at", centre=1.0)
    assert estimator.label == "centred_at(centre=1)"
    assert list(estimator.advantages(BATCH)) == [0, -1, 1]
    assert list(estimator.weights(BATCH)) == [0, -1, 0.5]
    assert estimator.expected_scale(7) == 1.0
    assert "centred_at" in estimators.names()
    assert "a number" in set(estimators.table()["baseline"])
    with pytest.raises(TypeError, match="has no parameter 'center': did you mean 'centre'"):
        estimators.get("centred_at", center=1.0)


@pytest.mark.usefixtures("clean_registry")
def test_your_own_at_token_level_is_masked():
    @estimators.register("ones", level="token", needs=("logprobs",))
    def ones(batch):
        return np.ones(batch.mask.shape)

    with pytest.raises(ValueError, match="ones needs logprobs"):
        estimators.get("ones").advantages(BATCH)
    advantages = estimators.get("ones").advantages(BATCH.with_fields(logprobs=-np.ones((3, 3))))
    assert np.array_equal(advantages, BATCH.mask)


@pytest.mark.usefixtures("clean_registry")
def test_names_are_given_once():
    with pytest.raises(ValueError, match="'rloo' is registered already"):
        estimators.register("rloo")(lambda batch: batch.rewards)
    with pytest.raises(ValueError, match="'opo' is registered already"):
        estimators.register("opo")(lambda batch: batch.rewards)
    estimators.register("twice")(lambda batch: batch.rewards)
    with pytest.raises(ValueError, match="'twice' is registered already: choose another name"):
        estimators.register("twice")(lambda batch: batch.rewards)


@pytest.mark.usefixtures("clean_registry")
def test_your_own_is_held_to_its_shape_and_words():
    estimators.register("short")(lambda batch: batch.rewards[:-1])
    with pytest.raises(ValueError, match=r"short returned advantages of shape \(2,\).*returns \(3,\)"):
        estimators.get("short").advantages(BATCH)
    with pytest.raises(ValueError, match=r"needs names 'sq_norm', .*did you mean 'sq_norms'"):
        estimators.register("bad", needs=("sq_norm",))
    with pytest.raises(ValueError, match="level must be"):
        estimators.register("bad", level="word")


def test_table_has_a_row_for_each():
    table = estimators.table()
    assert list(table.columns) == [
        "name", "baseline", "scale", "ratio + clip", "aggregation", "needs", "bias", "source",
    ]  # fmt: skip
    assert list(table["name"]) == estimators.names()
    assert set(table["aggregation"]) == {"sequence_sum"}
    assert not table.isna().any().any()


def test_factories_keep_their_documentation():
    assert "2402.14740" in (estimators.rloo.__doc__ or "")
    assert estimators.rloo.__name__ == "rloo"


@pytest.mark.parametrize(
    ("label", "unit"),
    [
        ("rloo", "sequence_sum"),
        ("kimi(tau=0.5)", "sequence_sum"),
        ("james_stein", "sequence_sum"),
        ("grpo", "sequence_sum / group_std"),
        ("max_rl", "sequence_sum / group_mean"),
        ("reinforce_pp", "sequence_sum / batch_token_std"),
        ("reinforce_pp_baseline", "sequence_sum / batch_token_std"),
        ("pass_at_k", "sequence_sum"),
        ("pass_at_k(normalize=True)", "sequence_sum / group_std"),
        ("gae", "sequence_sum"),
        ("gae(whiten=True)", "sequence_sum / batch_token_std"),
    ],
)
def test_each_estimator_states_its_unit(label, unit):
    assert estimators.get(label).unit == unit
    assert estimators.get(label).unit == estimators.recipes.lookup.unit_of_label(label)


def test_only_what_is_divided_by_a_spread_or_a_mean_has_another_unit():
    """Rewards and parameters of their unit ten times as large make weights ten times as large, and no other."""
    batch = estimators.Batch([1.0, 0.0, 3.0, 2.0], [3, 5, 4, 2], ["a", "a", "b", "b"])
    larger = batch.with_fields(rewards=10.0 * batch.rewards)
    for name in ("reinforce", "rloo", "group_mean", "grpo", "max_rl", "james_stein", "reinforce_pp_baseline"):
        estimator = estimators.get(name)
        factor = 10.0 if estimator.unit == "sequence_sum" else 1.0
        np.testing.assert_allclose(estimator.weights(larger), factor * estimator.weights(batch), rtol=1e-4)
