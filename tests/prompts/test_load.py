"""Problems from files, from reasoning-gym and from data sets."""

from __future__ import annotations

import re
import sys

import pytest
from prompt_rows import ROWS, write_json_lines

from gradstats.prompts.load import load_prompts


def test_subsets_are_seeded_and_keep_names_and_order(tmp_path):
    path = write_json_lines(tmp_path / "p.jsonl", ROWS)
    some, again, other = (load_prompts(path, 7, rng=rng) for rng in (1, 1, 2))
    assert some == again != other
    whole = {problem.prompt_id: problem for problem in load_prompts(path)}
    assert all(whole[problem.prompt_id] == problem for problem in some)
    numbers = [int(problem.prompt_id) for problem in some]
    assert numbers == sorted(set(numbers))
    more = load_prompts(path, 12, rng=1)
    assert [problem for problem in more if problem in some] == some


def test_columns_can_be_named(tmp_path):
    path = write_json_lines(tmp_path / "p.jsonl", [{"question": "1+1?", "solution": "that makes #### 2", "key": "k9"}])
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
        ('{"prompt": 12, "answer": "1"}', {}, r"row 0 of .* holds a int in 'prompt' \(12\): a prompt is text"),
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


def test_unparsable_answers_are_left_out_on_request_and_counted(tmp_path):
    rows = [{"prompt": f"{n}?", "answer": "none" if n % 3 == 0 else f"it is {n}"} for n in range(12)]
    path = write_json_lines(tmp_path / "p.jsonl", rows)
    settings = {"answer_format": "last_number", "skip_unparsable": True}
    with pytest.warns(UserWarning, match="4 rows of .* were left out: no answer in 'answer' in the format"):
        problems = load_prompts(path, **settings)
    assert [problem.prompt_id for problem in problems] == ["1", "2", "4", "5", "7", "8", "10", "11"]
    with pytest.warns(UserWarning, match="left out"):
        few, more = (load_prompts(path, n, rng=2, **settings) for n in (4, 7))
    assert {problem.prompt_id for problem in few} < {problem.prompt_id for problem in more}
    path = write_json_lines(tmp_path / "none.jsonl", rows[:1])
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
    with pytest.raises(ValueError, match="n is 100001: 'embedded' generates at most 100000 problems"):
        load_prompts("embedded", 100_001)
    with pytest.raises(ValueError, match="n is missing: 'embedded' generates its problems"):
        load_prompts("embedded")


def test_embedded_problems_are_seeded():
    problems = load_prompts("embedded", 30, rng=4)
    assert problems == load_prompts("embedded", 30, rng=4)
    assert len({problem.prompt_id for problem in problems}) == 30
    assert {problem.reward for problem in problems} == {"embedded"}
    for wrong, hint in (("seeed", "it has split, steps, falling"), ("step", "did you mean 'steps'?")):
        with pytest.raises(ValueError, match=f"^{re.escape(f'embedded has no setting {wrong!r}: {hint}')}$"):
            load_prompts("embedded", 3, **{wrong: 1})


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ImportError, match=r"needs reasoning-gym, .* pip install 'gradstats\[tasks\]'"):
        load_prompts("reasoning-gym/chain_sum", 2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"needs the `datasets` library: pip install 'gradstats\[hub\]'"):
        load_prompts("openai/gsm8k", 2)
