"""Files that exist whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from gradstats.system.files import atomic_path, read_json, remove_partials, remove_path, to_json, write_csv, write_json


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "deep" / "numbers.txt"
    with atomic_path(path) as partial:
        partial.write_text("1")

    def fail_half_way():
        with atomic_path(path) as partial:
            partial.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert path.read_text() == "1"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.txt"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    for name in ("old", "new"):
        with atomic_path(tmp_path / "folder", replace_folder=True) as partial:
            partial.mkdir()
            (partial / name).write_text("")
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["new"]


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / ".shard.7.partial").mkdir()
    (tmp_path / ".numbers.csv.7.partial").write_text("")
    (tmp_path / "kept.partial").write_text("")
    remove_partials(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.partial"]
    remove_path(tmp_path / "kept.partial")
    remove_path(tmp_path / "kept.partial")
    assert not list(tmp_path.iterdir())


def test_json_has_null_where_a_number_is_not_finite(tmp_path):
    data = {"a": np.float64("nan"), "b": [np.int64(2), float("inf"), (1.5,)], "c": {"d": "x", 3: None}}
    assert json.loads(to_json(data)) == {"a": None, "b": [2, None, [1.5]], "c": {"d": "x", "3": None}}
    write_json(tmp_path / "data.json", data)
    assert read_json(tmp_path / "data.json") == json.loads(to_json(data))


def test_a_table_is_written_whole_without_its_index(tmp_path):
    path = tmp_path / "tables" / "numbers.csv"
    write_csv(path, pd.DataFrame({"name": ["a", "b"], "value": [1 / 3, np.nan]}, index=[7, 8]))
    assert path.read_bytes() == b"name,value\na,0.3333333333333333\nb,\n"
    write_csv(path, pd.DataFrame({"value": [1 / 3]}), float_format="%.3g")
    assert path.read_bytes() == b"value\n0.333\n"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.csv"]
