"""The points of a length-scaling fit, from files of every format, standard input and published data."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradstats.analyses.points import load_points

NAMES = ["007", "7", "NA"]  # prompts named by numbers stay names: "007" is not "7"
FRAME = pd.DataFrame({"length": [3, 5, 8], "sq_norm": [1.0, 2.0, 4.0], "prompt_id": NAMES, "truncated": [0, 1, 0]})


def as_text(kind: str) -> str:
    if kind == "jsonl":
        return FRAME.to_json(orient="records", lines=True)
    return FRAME.to_csv(index=False, sep="\t" if kind == "tsv" else ",")


def assert_the_points(points):
    np.testing.assert_array_equal(points["lengths"], FRAME["length"])
    np.testing.assert_array_equal(points["sq_norms"], FRAME["sq_norm"])
    assert points["groups"].tolist() == NAMES
    assert points["truncated"].tolist() == [False, True, False]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_of_every_format_gives_the_same(tmp_path, kind):
    path = tmp_path / f"points.{kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    else:
        path.write_text(as_text(kind))
    assert_the_points(load_points(path))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_standard_input_shows_its_format(monkeypatch, kind):
    monkeypatch.setattr(sys, "stdin", io.StringIO(as_text(kind)))
    assert_the_points(load_points(Path("-")))


@pytest.mark.parametrize(
    ("text", "message"), [('{"length": 3', "cannot be read as CSV, TSV or JSON"), ("", "cannot be")]
)
def test_standard_input_that_is_no_table(monkeypatch, text, message):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    with pytest.raises(ValueError, match=message):
        load_points(Path("-"))


def test_published_points_are_known_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    points = load_points(Path("gloeckle2026"))
    assert len(points["lengths"]) == 29
    Path("gloeckle2026").write_text(FRAME.to_csv(index=False))  # a file of that name comes first
    assert_the_points(load_points(Path("gloeckle2026")))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tsv"])
def test_a_damaged_table_is_named(tmp_path, kind):
    path = tmp_path / f"points.{kind}"
    path.write_bytes(b'"\x00\xff\n1')
    with pytest.raises(ValueError, match=f"points.{kind} (cannot be read|has no column)"):
        load_points(path)


def test_points_are_read_with_what_the_file_has(tmp_path):
    FRAME[["length", "sq_norm"]].to_csv(tmp_path / "bare.csv", index=False)
    bare = load_points(tmp_path / "bare.csv")
    assert set(bare) == {"lengths", "sq_norms", "groups"}
    assert bare["groups"] is None
    np.testing.assert_array_equal(bare["sq_norms"], FRAME["sq_norm"])
    FRAME.assign(prompt_id=["a", None, "b"]).to_parquet(tmp_path / "points.parquet")
    with pytest.raises(ValueError, match="row 2 of .* has no prompt_id"):
        load_points(tmp_path / "points.parquet")
    with pytest.raises(FileNotFoundError, match=r"absent\.csv does not exist: give a table"):
        load_points(tmp_path / "absent.csv")
