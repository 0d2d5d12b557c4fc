"""Problems from JSONL, CSV and Parquet files, and the errors for broken ones."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from prompt_rows import ROWS, write_json_lines

from gradstats.prompts.load import file_problems, load_prompts
from gradstats.prompts.problem import ColumnMapping


def test_only_the_rows_of_a_subset_are_read_from_parquet(tmp_path):
    frame = pd.DataFrame(ROWS).assign(answer=[str(row + 1) if row % 2 else None for row in range(20)])
    frame.to_parquet(tmp_path / "p.parquet")
    frame.to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    mapping = ColumnMapping(skip_unparsable=True)
    with pytest.warns(UserWarning, match="were left out"):
        from_parquet = file_problems(tmp_path / "p.parquet", mapping, 4, seed=5)
    with pytest.warns(UserWarning, match="were left out"):
        from_json = file_problems(tmp_path / "p.jsonl", mapping, 4, seed=5)
    assert from_parquet == from_json
    assert all(int(problem.answer) % 2 == 0 for problem in from_parquet)


def test_a_byte_order_mark_and_empty_lines_are_no_content(tmp_path):
    content = "\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS[:2])
    (tmp_path / "p.jsonl").write_text(content, encoding="utf-8")
    problems = file_problems(tmp_path / "p.jsonl", ColumnMapping())
    assert [problem.prompt for problem in problems] == ["0 + 1?", "1 + 1?"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a", "answer": "1"}\n{"prompt"', r"line 2 of .*p\.jsonl is not JSON"),
        ("[1]", r"line 1 of .* is not a JSON object: '\[1\]'"),
        ("\n", "holds no problems"),
    ],
)
def test_broken_lines_are_named(tmp_path, content, message):
    (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        file_problems(tmp_path / "p.jsonl", ColumnMapping())


def test_jsonl_csv_and_parquet_give_the_same_problems(tmp_path):
    from_json = load_prompts(write_json_lines(tmp_path / "p.jsonl", ROWS))
    pd.DataFrame(ROWS).to_csv(tmp_path / "p.csv", index=False)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "p.parquet")
    assert from_json == load_prompts(tmp_path / "p.csv") == load_prompts(str(tmp_path / "p.parquet"))
    assert [problem.answer for problem in from_json] == [row["answer"] for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"prompt": "a", "answer": "1"}\n\n{"prompt": "\xff', "line 3 of .* is not UTF-8"),
        ("p.csv", b"prompt,answer\na,1\nb,2,3\n", "p.csv cannot be read .*line 3"),
        ("p.csv", b'prompt,answer\na,"1\n', "p.csv cannot be read .*EOF inside string"),
        ("p.csv", b"", "p.csv cannot be read .*No columns"),
        ("p.csv", b"prompt,answer\n", "p.csv holds no problems"),
        ("p.csv", b"prompt,answer\na,\n", "row 0 of .*p.csv has no answer"),
        ("p.parquet", b"PAR1 but not really", "p.parquet cannot be read"),
    ],
)
def test_truncated_files_are_named_with_the_line_where_they_have_lines(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_prompts(tmp_path / name)


def test_a_parquet_file_that_was_cut_short_is_named(tmp_path):
    path = tmp_path / "p.parquet"
    pd.DataFrame(ROWS).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"the prompt file .*p\.parquet cannot be read .*download it again"):
        load_prompts(path)


def test_cells_keep_what_stands_in_them(tmp_path):
    rows = [{"prompt": "a\u2028b", "answer": 7, "key": 3}, {"prompt": "b\u0085c", "answer": -0.5, "key": None}]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    problems = load_prompts(tmp_path / "p.jsonl")
    assert [(problem.prompt, problem.answer) for problem in problems] == [("a\u2028b", "7"), ("b\u0085c", "-0.5")]
    (tmp_path / "p.csv").write_text("prompt,answer\na,007\nb,NA\nc,1e3\n")
    assert [problem.answer for problem in load_prompts(tmp_path / "p.csv")] == ["007", "NA", "1e3"]
