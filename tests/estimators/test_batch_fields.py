"""Columns of the user's own, what a measurement hands on, and the remedies for infinite log-probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.estimators.registry import DEFINITIONS


def measured(**columns):
    masks = [np.array([True, False, True]), np.array([True])]
    frame = pd.DataFrame({"reward": [1.0, 2.0], **columns})
    rollouts = SimpleNamespace(
        masks=masks, rewards=np.array([1.0, 2.0]), prompt_id=np.array(["p", "p"]), frame=frame, tokens=None
    )
    return SimpleNamespace(rollouts=rollouts, entropy=[np.array([0.5, 9.0, 0.25]), np.array([1.5])])


def test_columns_of_the_rollouts_reach_the_batch():
    batch = Batch.from_measurement(
        measured(salience=[[0.5, 7.0, 2.0], [3.0]], domain=["algebra", "logic"], finish_reason=["length", "stop"])
    )
    assert sorted(batch.columns) == ["domain", "salience"]
    assert_array_equal(batch.columns["salience"], [[0.5, 0, 2], [3, 0, 0]])
    assert batch.truncated is not None
    assert batch.truncated.tolist() == [True, False]
    assert_array_equal(batch.entropy, [[0.5, 0, 0.25], [1.5, 0, 0]])
    last = batch.select(np.array([1]))
    assert last.columns["domain"].tolist() == ["logic"]
    assert last.with_fields(rewards=[3.0]).columns["salience"].tolist() == [[3.0, 0.0, 0.0]]


def test_an_estimator_of_ones_own_reads_a_column():
    before = dict(DEFINITIONS)
    try:

        @estimators.register("salient", level="token", needs=["column:salience"])
        def salient(batch):
            return batch.columns["salience"] * batch.rewards[:, None]

        batch = Batch.from_measurement(measured(salience=[[0.5, 7.0, 2.0], [3.0]]))
        assert_array_equal(estimators.get("salient").weights(batch), [[0.25, 0, 1], [3, 0, 0]])
        with pytest.raises(ValueError, match=r"salient needs column:salience.*frame a column 'salience'.*columns="):
            estimators.get("salient").weights(Batch.from_measurement(measured()))
    finally:
        DEFINITIONS.clear()
        DEFINITIONS.update(before)


def test_columns_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"columns\['salience'\] has shape \(3,\): give one entry per completion"):
        Batch([1, 0], [1, 2], ["a", "a"], columns={"salience": [1, 2, 3]})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("old_logprobs", "cannot have drawn a token of probability 0.*drop its row"),
        ("logprobs", "score in float32, or leave the completion out"),
        ("ref_logprobs", "the KL term is infinite"),
    ],
)
def test_infinite_log_probabilities_name_the_remedy(name: str, remedy: str):
    with pytest.raises(ValueError, match=rf"{name} holds 1 values.*the first, -inf, at completion 1, .*{remedy}"):
        Batch([1, 0], [1, 1], ["a", "a"], **{name: [[-1.0], [-np.inf]]})
