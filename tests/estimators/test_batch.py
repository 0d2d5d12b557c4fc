"""Input that a Batch accepts, and the errors for other input."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from gradstats import estimators
from gradstats.estimators import Batch, get, rloo
from gradstats.estimators.registry import DEFINITIONS


def test_lists_become_arrays_and_the_mask_follows_the_lengths():
    batch = Batch(rewards=[1, 0, 2], lengths=[2, 3, 1], groups=["b", "a", "b"])
    assert batch.rewards.dtype == np.float64
    assert_array_equal(batch.mask, [[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    assert batch.n_groups == 2
    assert_array_equal(batch.group_index, [1, 0, 1])
    assert_array_equal(batch.group_labels, ["a", "b"])
    assert_array_equal(batch.group_sizes, [1, 2])


def test_masks_may_have_holes_and_padding_is_never_read():
    logprobs = np.array([[-1.0, np.nan, -2.0], [-3.0, -4.0, np.nan]])
    batch = Batch([1, 0], [2, 2], [0, 0], mask=[[1, 0, 1], [1, 1, 0]], logprobs=logprobs)
    assert_array_equal(batch.logprobs, [[-1, 0, -2], [-3, -4, 0]])


def test_token_fields_may_be_wider_than_the_longest():
    batch = Batch([1, 0], [1, 2], [0, 0], logprobs=np.zeros((2, 5)))
    assert batch.mask.shape == (2, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rewards": []}, "rewards is empty"),
        (
            {"rewards": [1, np.nan]},
            "rewards holds 1 values that are not finite .*completion 1.*leave these completions",
        ),
        ({"rewards": [[1, 0]]}, r"rewards has shape \(1, 2\)"),
        ({"lengths": [1]}, r"lengths has shape \(1,\)"),
        ({"lengths": [1, -3]}, "lengths must be at least 1, got -3 at completion 1"),
        ({"lengths": [0, 1]}, "lengths must be at least 1, got 0 .*drop empty completions"),
        ({"lengths": [1.5, 2]}, "whole numbers"),
        ({"groups": ["a"]}, r"groups has shape \(1,\)"),
        ({"mask": [[1, 0, 1], [1, 1, 1]]}, "mask counts 2 tokens at completion 0, but lengths is 1 there"),
        ({"mask": [1, 2]}, r"mask has shape \(2,\)"),
        ({"mask": [[1, 2, 0], [1, 1, 1]]}, "only True and False"),
        ({"sq_norms": [1.0]}, r"sq_norms has shape \(1,\), expected \(2,\)"),
        ({"logprobs": [0.0, 1.0]}, r"logprobs has shape \(2,\)"),
        ({"logprobs": np.zeros((2, 2))}, "lengths reaches 3, but the token fields are only 2 wide"),
        ({"logprobs": np.zeros((2, 3)), "values": np.zeros((2, 4))}, r"values has shape \(2, 4\)"),
        ({"logprobs": [[0, 0, 0], [0, np.nan, 0]]}, "logprobs holds 1 values .*completion 1, position 1"),
        ({"values": [[0, 0, 0], [0, np.inf, 0]]}, "values holds 1 values"),
    ],
)
def test_bad_input(fields: dict, message: str):
    good = {"rewards": [1, 0], "lengths": [1, 3], "groups": ["a", "a"]}
    with pytest.raises(ValueError, match=message):
        Batch(**{**good, **fields})


def test_missing_fields_say_how_to_get_them():
    batch = Batch([1, 0], [1, 3], ["a", "a"])
    with pytest.raises(ValueError, match=r"norm_weighted needs sq_norms.*measure the squared gradient norm"):
        get("norm_weighted").advantages(batch)
    with pytest.raises(ValueError, match=r"otb\(energy=exact\) needs token_energy.*measure with token_probes="):
        get("otb", energy="exact").advantages(batch)
    with pytest.raises(ValueError, match="otb needs logprobs and sum_pi_squared"):
        get("otb").advantages(batch)
    with pytest.raises(ValueError, match=r"remax needs greedy_rewards.*greedy completion"):
        get("remax").advantages(batch)
    with pytest.raises(ValueError, match="gae needs values"):
        get("gae").advantages(batch)


def test_select_keeps_every_field():
    batch = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"], sq_norms=[1.0, 2.0, 3.0], logprobs=-np.ones((3, 3)))
    part = batch.select(np.array([True, False, True]))
    assert_array_equal(part.rewards, [1, 2])
    assert_array_equal(part.sq_norms, [1, 3])
    assert part.n_groups == 1
    assert part.logprobs is not None
    assert_array_equal(rloo().advantages(part), [-1, 1])


def measurement(**fields) -> SimpleNamespace:
    masks = [np.array([True, False, True]), np.array([True])]
    frame = pd.DataFrame({"token_rewards": [[0.0, 0.0, 1.0], [2.0]]})
    rollouts = SimpleNamespace(
        masks=masks,
        rewards=np.array([1.0, 2.0]),
        prompt_id=np.array(["p", "q"]),
        frame=frame,
        tokens=lambda column: [np.asarray(row) for row in frame[column]],
    )
    return SimpleNamespace(rollouts=rollouts, **fields)


def test_from_measurement_pads_what_was_measured():
    measured = measurement(
        sq_norms=np.array([1.0, 2.0]),
        logprobs=[np.array([-1.0, -9.0, -2.0]), np.array([-3.0])],
        old_logprobs=None,
    )
    batch = Batch.from_measurement(measured, greedy_rewards=[0.0, 1.0])
    assert_array_equal(batch.mask, [[1, 0, 1], [1, 0, 0]])
    assert_array_equal(batch.lengths, [2, 1])
    assert_array_equal(batch.logprobs, [[-1, 0, -2], [-3, 0, 0]])
    assert_array_equal(batch.token_rewards, [[0, 0, 1], [2, 0, 0]])
    assert_array_equal(batch.groups, ["p", "q"])
    assert_array_equal(batch.greedy_rewards, [0, 1])
    assert batch.old_logprobs is None


def test_from_measurement_refuses_ragged_fields_of_another_length():
    measured = measurement(logprobs=[np.array([-1.0]), np.array([-3.0])])
    with pytest.raises(ValueError, match="logprobs does not have one value per completion token"):
        Batch.from_measurement(measured)


def test_a_path_in_place_of_a_measurement_is_named_with_the_way_to_read_it():
    with pytest.raises(TypeError, match=r"'runs/demo' is a path: give the measurement, gradstats\.read_measurement"):
        Batch.from_measurement("runs/demo")


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
