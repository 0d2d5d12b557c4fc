"""The checksum of a table depends on what it holds and on nothing else."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradstats.rollouts.schema import SCHEMA, table_digest, validate

COLUMNS = {
    "text": pa.array(["a", None, "", "é"]),
    "number": pa.array([1.5, None, float("nan"), 0.0]),
    "flags": pa.array([[True], [], None, [False, True]]),
    "ids": pa.array([[1, 2], [3], [], None], pa.list_(pa.int32())),
}


def test_it_survives_parquet_and_chunks(tmp_path):
    table = pa.table(COLUMNS)
    expected = table_digest(table, b"about")
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=2, compression="snappy")
    assert table_digest(pq.read_table(tmp_path / "table.parquet"), b"about") == expected
    assert table_digest(pa.concat_tables([table[:1], table[1:]]), b"about") == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", ["a", "", None, "é"]),
        ("text", ["", "a", None, "é"]),
        ("number", [1.5, 0.0, float("nan"), 0.0]),
        ("flags", [[True], None, [], [False, True]]),
        ("ids", [[1], [2, 3], [], None]),
    ],
)
def test_it_notices_every_change(name, values):
    table = pa.table(COLUMNS)
    changed = pa.table(COLUMNS | {name: pa.array(values, COLUMNS[name].type)})
    renamed = table.rename_columns(["text", "number", "flags", "tokens"])
    digests = {table_digest(one, b"about") for one in (table, changed, renamed, table[::-1])}
    assert len(digests | {table_digest(table, b"About")}) == 5


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
