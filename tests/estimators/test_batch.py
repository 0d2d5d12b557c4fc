"""Input that a Batch accepts, what it takes from a measurement, and the errors for other input."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch, registry


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


@pytest.mark.parametrize("label", ["rloo", "group_mean", "grpo", "max_rl", "remax"])
def test_rewards_equal_up_to_rounding_are_equal(label):
    near, equal = [0.1 + 0.2, 0.3, 0.3, 1.0, 0.3 - 0.2 - 0.1, 0.0], [0.3, 0.3, 0.3, 1.0, 0.0, 0.0]
    greedy = [0.3, 0.3, 0.1 + 0.2, 1.0, 0.0, 0.0]
    batches = [
        Batch(rewards, [1, 2, 3, 1, 2, 3], [0, 0, 1, 1, 2, 2], greedy_rewards=greedy, truncated=[0] * 6)
        for rewards in (near, equal)
    ]
    assert_array_equal(batches[0].rewards, equal)
    one, other = (registry.get_estimator(label).weights(batch) for batch in batches)
    assert_array_equal(one, other)
    assert not one[[0, 1, 4, 5]].any()


def test_rewards_that_differ_by_more_than_rounding_stay():
    rewards = np.array([1.0, 1.0 + 1e-14, 0.0, 1e-14, 1e-9, -1e-9])
    assert_array_equal(Batch(rewards, [1] * 6, [0] * 6).rewards, rewards)
    single = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert len({*Batch(np.append(single[:1] + single[1:2], single[2:]), [1, 1], [0, 0]).rewards}) == 1
    assert len({*Batch(np.float32([0.3, 0.30001]), [1, 1], [0, 0]).rewards}) == 2


INFINITE, AT_1 = [[-1.0] * 3, [-np.inf] * 3], "logprobs holds 3 values.*the first, -inf, at completion 1, .*"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rewards": []}, "rewards is empty"),
        ({"rewards": [1, np.nan]}, "rewards holds 1 values that are not finite .*completion 1.*leave these compl"),
        ({"rewards": [1, -1e308]}, r"rewards holds -1e\+308 at completion 1, beyond ±1e\+100, .*: scale the rewards"),
        ({"greedy_rewards": [1e308, 0]}, r"greedy_rewards holds 1e\+308 at completion 0"),
        ({"greedy_rewards": [1]}, r"greedy_rewards has shape \(1,\)"),
        ({"rewards": [[1, 0]]}, r"rewards has shape \(1, 2\)"),
        ({"lengths": [1]}, r"lengths has shape \(1,\)"),
        ({"lengths": [1, -3]}, "lengths must be at least 1, got -3 at completion 1"),
        ({"lengths": [0, 1]}, "lengths must be at least 1, got 0 .*drop empty completions, or give a mask"),
        ({"lengths": [-1, 1], "mask": [[0], [1]]}, "lengths must be at least 1, got -1"),
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
        ({"columns": {"salience": [1, 2, 3]}}, r"columns\['salience'\] has shape \(3,\): give one entry per"),
        ({"old_logprobs": INFINITE}, f"old_{AT_1}cannot have drawn a token of probability 0.*drop its row"),
        ({"logprobs": INFINITE}, f"{AT_1}score in float32, or leave the completion out"),
        ({"ref_logprobs": INFINITE}, f"ref_{AT_1}the KL term is infinite"),
    ],
)
def test_bad_input(fields: dict, message: str, unchecked):
    good = {"rewards": [1, 0], "lengths": [1, 3], "groups": ["a", "a"]}
    with pytest.raises(ValueError, match=message):
        Batch(**{**good, **fields})


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("norm_weighted", r"norm_weighted needs sq_norms.*measure the squared gradient norm"),
        ("otb(energy=exact)", r"otb\(energy=exact\) needs token_energy.*measure with --set measurement.token_probes="),
        ("otb", "otb needs logprobs and sum_pi_squared"),
        ("remax", r"remax needs greedy_rewards.*greedy completion"),
        ("gae", "gae needs values"),
    ],
)
def test_missing_fields_say_how_to_get_them(label, message):
    with pytest.raises(ValueError, match=message):
        est.get(label).advantages(Batch([1, 0], [1, 3], ["a", "a"]))


def test_token_fields_of_a_selection_are_selected_when_they_are_asked_for():
    logprobs = -np.arange(9.0).reshape(3, 3)
    batch = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"], sq_norms=[1.0, 2.0, 3.0], logprobs=logprobs)
    part = batch.select(np.array([2, 0]))
    assert "logprobs" not in vars(part)
    assert part.has("logprobs")
    assert not part.has("entropy")
    assert (part.rewards.tolist(), part.sq_norms.tolist(), part.n_groups) == ([2, 1], [3, 1], 1)
    again = part.select(np.array([True, False]))
    assert_array_equal(again.logprobs, batch.logprobs[[2]])
    assert part.logprobs is part.logprobs
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        part.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([None, "a", "a"], "groups has no label at completion 0, but None: give each completion the label of its"),
        ([float("nan"), float("nan"), 1.0], r"no label at completion 0, but nan \(1 more are missing\)"),
        (np.array([1.0, np.nan, 1.0]), "no label at completion 1, but nan"),
        (pd.Series(["a", None, "a"]), "no label at completion 1"),
        (pd.array(["a", "a", None], dtype="string"), "no label at completion 2, but <NA>"),
        ([1, "1", 1], r"groups mixes numbers and text \(1 and '1'\): give labels of one type, as in \[str"),
        (np.array(["1", 1.0, 1], dtype=object), r"groups mixes text and numbers \('1' and 1\.0\)"),
        ([b"a", "a", "a"], "groups mixes bytes objects and text"),
    ],
)
def test_groups_without_a_label_and_of_mixed_types_are_refused(groups, sentence):
    with pytest.raises(ValueError, match=sentence):
        Batch(rewards=[1, 0, 0], lengths=[3, 3, 3], groups=groups)


@pytest.mark.parametrize(
    "groups",
    [[1, 2.0, 1], [np.int64(1), 2, True], ["a", np.str_("b"), "a"], pd.Series([*"aba"], dtype="category"), (1, 2, 1)],
)
def test_labels_of_one_type_are_groups(groups, unchecked):
    assert Batch(rewards=[1, 0, 0], lengths=[3, 3, 3], groups=groups).group_sizes.tolist() == [2, 1]


def test_other_groups_of_the_same_completions():
    batch = Batch([1, 0, 2], [1, 3, 2], ["a", "b", "a"], logprobs=-np.ones((3, 3)))
    other = batch.regrouped(np.array([5, 5, 3]))
    assert_array_equal(other.group_index, [1, 1, 0])
    assert_array_equal(other.group_labels, [3, 5])
    assert_array_equal(batch.group_index, [0, 1, 0])
    assert other.logprobs is batch.logprobs
    with pytest.raises(ValueError, match="groups has shape"):
        batch.regrouped(np.zeros(2))


def measured(*, columns=None, **fields) -> SimpleNamespace:
    """A measurement of two completions, of three tokens and of one."""
    frame = pd.DataFrame({"reward": [1.0, 2.0], **(columns or {})})
    rollouts = SimpleNamespace(
        masks=[np.array([True, False, True]), np.array([True])],
        rewards=np.array([1.0, 2.0]),
        prompt_id=np.array(["p", "q"]),
        frame=frame,
        tokens=lambda column: [np.asarray(row) for row in frame[column]],
    )
    return SimpleNamespace(rollouts=rollouts, **fields)


def test_from_measurement_pads_what_was_measured():
    logprobs = [np.array([-1.0, -9.0, -2.0]), np.array([-3.0])]
    known = measured(
        columns={"token_rewards": [[0.0, 0.0, 1.0], [2.0]]}, sq_norms=np.array([1.0, 2.0]), logprobs=logprobs
    )
    batch = Batch.from_measurement(known, greedy_rewards=[0.0, 1.0])
    for name, values in {
        "mask": [[1, 0, 1], [1, 0, 0]],
        "lengths": [2, 1],
        "logprobs": [[-1, 0, -2], [-3, 0, 0]],
        "token_rewards": [[0, 0, 1], [2, 0, 0]],
        "groups": ["p", "q"],
        "sq_norms": [1, 2],
        "greedy_rewards": [0, 1],
    }.items():
        assert_array_equal(getattr(batch, name), values)
    assert batch.old_logprobs is None


def test_log_probabilities_that_a_sampler_left_out_are_not_taken_for_known():
    of_trainer = [np.full(3, -1.5), np.array([-2.5])]
    for missing, known in ((1, True), (2, False)):  # at a masked token, at a counted one
        old = [np.where(np.arange(3) == missing, np.nan, -1.0), np.array([-3.0])]
        batch = Batch.from_measurement(measured(old_logprobs=old, proximal_logprobs=of_trainer))
        assert (batch.old_logprobs is not None) == known
        assert (batch.proximal_logprobs is not None) == known


def test_from_measurement_refuses_ragged_fields_of_another_length_and_a_path(unchecked):
    with pytest.raises(ValueError, match="logprobs does not have one value per completion token"):
        Batch.from_measurement(measured(logprobs=[np.array([-1.0]), np.array([-3.0])]))
    with pytest.raises(TypeError, match=r"'runs/demo' is a path: give the measurement, gradstats\.read_measurement"):
        Batch.from_measurement("runs/demo")


SALIENCE = [[0.5, 7.0, 2.0], [3.0]]


def test_columns_of_the_rollouts_reach_the_batch():
    columns = {"salience": SALIENCE, "domain": ["algebra", "logic"], "finish_reason": ["length", "stop"]}
    batch = Batch.from_measurement(measured(columns=columns))
    assert sorted(batch.columns) == ["domain", "salience"]
    assert_array_equal(batch.columns["salience"], [[0.5, 0, 2], [3, 0, 0]])
    assert batch.truncated.tolist() == [True, False]
    last = batch.select(np.array([1]))
    assert last.columns["domain"].tolist() == ["logic"]
    assert last.with_fields(rewards=[3.0]).columns["salience"].tolist() == [[3.0, 0.0, 0.0]]


def test_an_estimator_of_ones_own_reads_a_column(monkeypatch):
    monkeypatch.setattr(registry, "DEFINITIONS", dict(registry.DEFINITIONS))

    @est.register("salient", level="token", needs=["column:salience"])
    def salient(batch):
        return batch.columns["salience"] * batch.rewards[:, None]

    batch = Batch.from_measurement(measured(columns={"salience": SALIENCE}))
    assert_array_equal(est.get("salient").weights(batch), [[0.5, 0, 2], [6, 0, 0]])
    with pytest.raises(ValueError, match=r"salient needs column:salience.*frame a column 'salience'.*columns="):
        est.get("salient").weights(Batch.from_measurement(measured()))
