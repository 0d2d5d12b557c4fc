"""Problems from files, from reasoning-gym and from data sets."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from gradstats.prompts import load_prompts
from gradstats.prompts.columns import extract_reference


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


@pytest.mark.parametrize(
    ("text", "answer_format", "expected"),
    [
        (" 7 ", "text", "7"),
        ("", "text", None),
        ("so 3 and 1,204.50 dollars in all.", "last_number", "1204.50"),
        ("it is -5/8 of it", "last_number", "-5/8"),
        ("no number", "last_number", None),
        ("9 * 2 = <<9*2=18>>18\n#### 1,018", "hashes", "1018"),
        ("18", "hashes", None),
    ],
)
def test_reference_answers_are_found_in_each_format(text, answer_format, expected):
    assert extract_reference(text, answer_format) == expected


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


def test_missing_and_unknown_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl does not exist"):
        load_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="source 'nothing' is not known"):
        load_prompts("nothing")
    with pytest.raises(ValueError, match="n is missing: 'embedded' generates its problems"):
        load_prompts("embedded")
    (tmp_path / "p.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ValueError, match=r"p\.parquet cannot be read"):
        load_prompts(tmp_path / "p.parquet")


def test_embedded_problems_are_seeded():
    problems = load_prompts("embedded", 30, rng=4)
    assert problems == load_prompts("embedded", 30, rng=4)
    assert len({problem.prompt_id for problem in problems}) == 30
    assert {problem.reward for problem in problems} == {"embedded"}
    with pytest.raises(ValueError, match="the embedded problems refuse the settings"):
        load_prompts("embedded", 3, colour="red")


def test_a_local_data_set_goes_through_the_hub_path(tmp_path):
    folder = tmp_path / "sets" / "arithmetic"
    folder.mkdir(parents=True)
    write(folder / "train.jsonl", [{"question": f"{n}?", "answer": f"it is {n} of them"} for n in range(9)])
    settings = {"prompt_column": "question", "answer_format": "last_number"}
    some = load_prompts(str(folder), 4, rng=3, **settings)
    assert some == load_prompts(str(folder), 4, rng=3, **settings)
    assert all(problem.prompt == f"{problem.prompt_id}?" and problem.answer == problem.prompt_id for problem in some)
    with pytest.raises(ValueError, match="n is 10, but the split 'train' of .* holds only 9"):
        load_prompts(str(folder), 10, **settings)


def test_an_unreachable_data_set_gives_the_remedy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    import datasets

    def unreachable(*_args, **_options):
        raise ConnectionError("Couldn't reach the Hub")

    with pytest.raises(ConnectionError, match="openai/gsm8k.*could not be loaded: .* save it as Parquet"):
        load_prompts("openai/gsm8k", 3)
    monkeypatch.setattr("gradstats.prompts.hub.hub_problem", lambda *_args: None)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        ConnectionError, match="openai/gsm8k.*could not be loaded: .*reach the Hub.* save it as Parquet"
    ):
        load_prompts("openai/gsm8k", 3)


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ImportError, match=r"needs reasoning-gym, .* pip install 'gradstats\[tasks\]'"):
        load_prompts("reasoning-gym/chain_sum", 2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"needs the `datasets` library: pip install 'gradstats\[hub\]'"):
        load_prompts("openai/gsm8k", 2)
