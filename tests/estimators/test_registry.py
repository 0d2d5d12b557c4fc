"""Estimators by name and by label, user-defined estimators, and the page of both."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from gradstats import estimators
from gradstats.estimators import Batch, registry

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))


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
    estimators.register("own_mean", expected_scale=lambda size: (size - 1) / size)(centred_at)
    assert estimators.get("own_mean").expected_scale(4) == 0.75
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
    estimators.register("twice")(lambda batch: batch.rewards)
    for name in ("rloo", "opo", "twice"):
        with pytest.raises(ValueError, match=f"'{name}' is registered already: choose another name"):
            estimators.register(name)(lambda batch: batch.rewards)


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


def test_factories_keep_their_documentation_and_stand_in_the_order_of_the_page():
    assert "2402.14740" in (estimators.rloo.__doc__ or "")
    assert estimators.rloo.__name__ == "rloo"
    first = ["reinforce", "constant", "batch_mean", "group_mean", "rloo", "dr_grpo", "asymmetric", "token_mean"]
    assert estimators.names()[:8] == first


@pytest.fixture(scope="module")
def page_module():
    spec = importlib.util.spec_from_file_location("estimators_page", DOCS / "estimators_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(page_module):
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    rendered = page_module.render(page)
    assert rendered == page, "run: python docs/estimators_page.py"


def test_rankings_show_wins_and_losses(page_module):
    matched = {
        name: page_module.ranking(policy()).set_index("estimator")["at matched signal"]
        for name, policy in page_module.POLICIES.items()
    }
    better = {
        name: tuple(column[["`length_weighted(alpha=0.8, loo=True)`", "`otb(loo=True)`"]] < 1)
        for name, column in matched.items()
    }
    assert better == {"patient": (True, True), "last word": (False, False), "steady": (False, True)}


def test_a_missing_marker_is_named(page_module):
    with pytest.raises(ValueError, match="one pair of markers for 'estimators', found 0"):
        page_module.render(re.sub("generated: estimators", "gone", (DOCS / "estimators.md").read_text()))
