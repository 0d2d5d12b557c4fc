"""Problems from data sets of the hub."""

from __future__ import annotations

import json

import pytest
from prompt_rows import write_json_lines

from gradstats.prompts.load import load_prompts


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_local_data_set_goes_through_the_hub_path(tmp_path):
    folder = tmp_path / "sets" / "arithmetic"
    folder.mkdir(parents=True)
    write_json_lines(folder / "train.jsonl", [{"question": f"{n}?", "answer": f"it is {n} of them"} for n in range(9)])
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

    with pytest.raises(ConnectionError, match="openai/gsm8k.*could not be loaded .*hf download openai/gsm8k"):
        load_prompts("openai/gsm8k", 3)
    monkeypatch.setattr("gradstats.prompts.load.hub_problem", lambda *_args: None)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        ConnectionError, match="openai/gsm8k.*could not be loaded .*reach the Hub.*--local-dir data/gsm8k"
    ):
        load_prompts("openai/gsm8k", 3)
