"""Problems from files, from reasoning-gym and from data sets."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from gradstats.prompts.load import load_prompts


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)]


def test_jsonl_csv_and_parquet_give_the_same_problems(tmp_path):
    from_json = load_prompts(write(tmp_path / "p.jsonl", ROWS))
    pd.DataFrame(ROWS).to_csv(tmp_path / "p.csv", index=False)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "p.parquet")
    assert from_json == load_prompts(tmp_path / "p.csv") == load_prompts(str(tmp_path / "p.parquet"))
    assert [problem.answer for problem in from_json] == [row["answer"] for row in ROWS]


def test_subsets_are_seeded_and_keep_names_and_order(tmp_path):
    path = write(tmp_path / "p.jsonl", ROWS)
    some, again, other = (load_prompts(path, 7, rng=rng) for rng in (1, 1, 2))
    assert some == again != other
    whole = {problem.prompt_id: problem for problem in load_prompts(path)}
    assert all(whole[problem.prompt_id] == problem for problem in some)
    numbers = [int(problem.prompt_id) for problem in some]
    assert numbers == sorted(set(numbers))
    more = load_prompts(path, 12, rng=1)
    assert [problem for problem in more if problem in some] == some


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"question": "1+1?", "solution": "that makes #### 2", "key": "k9"}])
    settings = {
        "prompt_column": "question",
        "answer_column": "solution",
        "id_column": "key",
        "answer_format": "hashes",
    }
    (problem,) = load_prompts(path, **settings)
    assert (problem.prompt_id, problem.prompt, problem.answer) == ("k9", "1+1?", "2")


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ('{"prompt": "a"}', {}, r"p\.jsonl has no column 'answer' \(it has prompt\).*answer_column"),
        ('{"prompt": "a", "answer": "1"}\n{"prompt"', {}, r"line 2 of the prompt file .* is not JSON"),
        ("[1]", {}, "line 1 of the prompt file .* is not a JSON object"),
        ("\n", {}, "holds no problems"),
        ('{"prompt": "a", "answer": null}', {}, "row 0 of .* has no answer in 'answer'"),
        ('{"prompt": " ", "answer": "1"}', {}, "row 0 of .* has an empty 'prompt'"),
        (
            '{"prompt": "a", "answer": "1"}',
            {"answer_format": "latex"},
            "answer_format must be one of text, last_number",
        ),
        ('{"prompt": "a", "answer": [1]}', {}, r"row 0 of .* holds a list in 'answer': .*answer_column=answer\.0"),
        ('{"prompt": "a", "answer": {"b": 1}}', {}, r"holds a dict in 'answer': .*answer_column=answer\.b"),
        (
            '{"prompt": "a", "answer": {"b": 1}}',
            {"answer_column": "answer.c"},
            r"row 0 of .* has no 'c' in 'answer' \(it has b\)",
        ),
        (
            '{"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], "answer": "1"}',
            {},
            "row 0 of .* holds a conversation of system, user in 'prompt': .*system_prompt",
        ),
        ('{"prompt": "a", "answer": "none"}', {"answer_format": "last_number"}, "row 0 .*'none'; .*skip_unparsable"),
        ('{"prompt": "a", "answer": "1"}', {"id_column": "k"}, r"has no column 'k' .*id_column"),
        (
            '{"prompt":"a","answer":"1","k":1}\n{"prompt":"b","answer":"1"}',
            {"id_column": "k"},
            "row 1 of .* has no name",
        ),
        ('{"prompt": "a", "answer": "1"}', {"answer_colum": "b"}, "no setting 'answer_colum': did you mean 'answer_c"),
        ('{"prompt": "a", "answer": "1"}', {"split": "b"}, "no setting 'split': it has prompt_column"),
        ('{"prompt": "a", "answer": "1"}', {"n": 2}, "n is 2, but .* holds only 1 problems"),
        ('{"prompt": "a", "answer": "1"}', {"n": 0}, "n is 0"),
        (
            '{"prompt":"a","answer":"1","k":1}\n{"prompt":"b","answer":"1","k":1}',
            {"id_column": "k"},
            "repeats names",
        ),
    ],
)
def test_broken_files_are_named(tmp_path, content, settings, message):
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_prompts(path, **settings)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"prompt": "a", "answer": "1"}\n\n{"prompt": "\xff', "line 3 of the prompt file .* is not JSON"),
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


def test_unparsable_answers_are_left_out_on_request_and_counted(tmp_path):
    rows = [{"prompt": f"{n}?", "answer": "none" if n % 3 == 0 else f"it is {n}"} for n in range(12)]
    path = write(tmp_path / "p.jsonl", rows)
    settings = {"answer_format": "last_number", "skip_unparsable": True}
    with pytest.warns(UserWarning, match="4 rows of .* were left out: no answer in 'answer' in the format"):
        problems = load_prompts(path, **settings)
    assert [problem.prompt_id for problem in problems] == ["1", "2", "4", "5", "7", "8", "10", "11"]
    with pytest.warns(UserWarning, match="left out"):
        few, more = (load_prompts(path, n, rng=2, **settings) for n in (4, 7))
    assert {problem.prompt_id for problem in few} < {problem.prompt_id for problem in more}
    path = write(tmp_path / "none.jsonl", rows[:1])
    with (
        pytest.warns(UserWarning, match="1 rows of"),
        pytest.raises(ValueError, match="holds no problems whose answer could be read"),
    ):
        load_prompts(path, **settings)


def test_missing_and_unknown_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl does not exist"):
        load_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="source 'nothing' is not known"):
        load_prompts("nothing")
    with pytest.raises(ValueError, match="n is missing: 'embedded' generates its problems"):
        load_prompts("embedded")


def test_embedded_problems_are_seeded():
    problems = load_prompts("embedded", 30, rng=4)
    assert problems == load_prompts("embedded", 30, rng=4)
    assert len({problem.prompt_id for problem in problems}) == 30
    assert {problem.reward for problem in problems} == {"embedded"}
    with pytest.raises(ValueError, match="the embedded problems do not accept the settings"):
        load_prompts("embedded", 3, colour="red")


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ImportError, match=r"needs reasoning-gym, .* pip install 'gradstats\[tasks\]'"):
        load_prompts("reasoning-gym/chain_sum", 2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"needs the `datasets` library: pip install 'gradstats\[hub\]'"):
        load_prompts("openai/gsm8k", 2)
