"""Estimators named module:function, registered or not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.registry import DEFINITIONS

BATCH = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"])
SOURCE = """
from gradstats import estimators

def half(batch, factor=0.5):
    return factor * batch.rewards

@estimators.register("own_ones", level="token", expected_scale=1.0, bias="none")
def ones(batch):
    return 1.0 * batch.mask
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    before = dict(DEFINITIONS)
    (tmp_path / "own_estimators.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield
    DEFINITIONS.clear()
    DEFINITIONS.update(before)
    sys.modules.pop("own_estimators", None)


def test_a_function_in_the_working_directory_is_an_estimator():
    half = est.get("own_estimators:half(factor=3)")
    assert np.array_equal(half.advantages(BATCH), 3 * BATCH.rewards)
    assert (half.label, half.level, half.expected_scale(4)) == ("own_estimators:half(factor=3)", "sequence", None)
    with pytest.raises(TypeError, match="has no parameter 'factr': did you mean 'factor'"):
        est.get("own_estimators:half(factr=3)")


def test_what_was_registered_of_a_function_holds():
    ones = est.get("own_estimators:ones")
    assert (ones.level, ones.expected_scale(4), ones.label) == ("token", 1.0, "own_estimators:ones")
    assert np.array_equal(ones.advantages(BATCH), BATCH.mask)


def test_it_is_the_advantage_of_a_recipe():
    recipe = est.get("recipe:grpo(advantage='own_estimators:half(factor=2)')")
    assert recipe.advantage.label == "own_estimators:half(factor=2)"
    assert np.array_equal(recipe.advantage.advantages(BATCH), 2 * BATCH.rewards)


@pytest.mark.parametrize("name", ["absent_module:f", "own_estimators:absent"])
def test_the_error_says_where_it_was_looked_for(name: str, tmp_path):
    with pytest.raises(ImportError, match=f"{name}.*{tmp_path if name.startswith('absent') else 'absent'}"):
        est.get(name)
