"""The checksum of a table depends on what it holds and on nothing else."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradstats.rollouts.schema import table_digest

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
