"""The checks that every table of rollouts passes."""

from __future__ import annotations

import pandas as pd
import pytest

from gradstats.rollouts.schema import SCHEMA, validate

ROW = {"prompt_id": "a", "sample_id": 0, "prompt_tokens": [1], "completion_tokens": [2, 3], "reward": 1.0}
SECOND = ROW | {"sample_id": 1, "sampler_logprobs": [-1.0, float("nan")]}


def test_a_table_of_the_required_columns_passes():
    assert [name for name, (_, required) in SCHEMA.items() if required] == list(ROW)
    validate(pd.DataFrame([ROW, ROW | {"sample_id": 1}]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"completion_tokens": []}, r"row 1 \(prompt_id 'a', sample_id 1\) has no completion tokens"),
        ({"prompt_tokens": []}, "has no prompt tokens"),
        ({"reward": float("inf")}, "has a reward that is not finite"),
        ({"sample_id": 0}, "repeats its sample_id"),
        ({"sampler_logprobs": [-1.0, 0.5]}, "has a sampler_logprobs above 0: give natural log-probabilities"),
        ({"sampler_logprobs": [float("nan"), float("inf")]}, "has a sampler_logprobs above 0"),
    ],
)
def test_the_first_row_that_is_wrong_is_named(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        validate(pd.DataFrame([ROW | {"sampler_logprobs": [-1.0, -2.0]}, SECOND | change]))


def test_unknown_log_probabilities_and_those_that_rounding_leaves_above_zero_pass():
    validate(pd.DataFrame([ROW | {"sampler_logprobs": [float("nan"), 1e-3]}, SECOND]))
