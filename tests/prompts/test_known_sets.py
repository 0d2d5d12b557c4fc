"""Known data sets, read by the `datasets` library from local files shaped like them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from gradstats.prompts.load import is_on_hub, load_prompts

ORCA = [
    ("How many legs?", "Each of the 2 cats has 4 legs, so they have 2 * 4 = 8 legs.\nTherefore, they have 8 legs."),
    ("What is the price?", "It costs 3 * $400 = $1,200.50 in all."),
    ("What share?", "The share that is left is 3/8."),
]
GSM8K = [
    ("Mia bakes 12 rolls and eats 5. How many are left?", "She has 12 - 5 = <<12-5=7>>7 rolls.\n#### 7"),
    ("A house costs 5 * 40,000. How much is it?", "It is 5 * 40,000 = <<5*40000=200000>>200,000.\n#### 200,000"),
]
MATH_500 = [
    (r"Convert $(0,3)$ to polar coordinates.", r"\left( 3, \frac{\pi}{2} \right)", "test/precalculus/807.json"),
    (r"Evaluate $f(3)$.", r"\frac{14}{3}", "test/algebra/2584.json"),
]
INSTRUCTION = "Solve the following math problem step by step.\n\n"


def dapo(number):
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{INSTRUCTION}What is {number} + 1?", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(number + 1), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{number}"},
    }


@pytest.fixture
def folders(tmp_path):
    """Folders as written by ``hf download ID --local-dir data/NAME``."""
    frames = {
        "orca-math-word-problems-200k/data/train-00000-of-00001.parquet": pd.DataFrame(
            ORCA, columns=["question", "answer"]
        ),
        "gsm8k/main/test-00000-of-00001.parquet": pd.DataFrame(GSM8K, columns=["question", "answer"]),
        "gsm8k/main/train-00000-of-00001.parquet": pd.DataFrame([("no", "#### 0")], columns=["question", "answer"]),
        "DAPO-Math-17k/data/dapo-math-17k.parquet": pd.DataFrame([dapo(number % 4) for number in range(12)]),
        "DAPO-Math-17k-Processed/all/train-00000-of-00001.parquet": pd.DataFrame(
            [dapo(n) | {"prompt": f"What is {n} + 1?", "solution": str(n + 1), "source_prompt": []} for n in range(3)]
        ),
    }
    for name, frame in frames.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path)
    configs = {
        "gsm8k": [("main", "train", "main/train-*"), ("main", "test", "main/test-*")],
        "DAPO-Math-17k-Processed": [("all", "train", "all/train-*")],
    }
    for name, entries in configs.items():
        lines = ["---", "configs:", f"- config_name: {entries[0][0]}", "  data_files:"]
        lines += [line for _, split, path in entries for line in (f"  - split: {split}", f"    path: {path}")]
        (tmp_path / name / "README.md").write_text("\n".join([*lines, "---", ""]))
    rows = [
        {"problem": problem, "solution": "long", "answer": answer, "subject": "s", "level": 3, "unique_id": name}
        for problem, answer, name in MATH_500
    ]
    (tmp_path / "MATH-500").mkdir()
    (tmp_path / "MATH-500" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_orca_math_gives_the_final_number_of_each_solution(folders):
    problems = load_prompts(folders / "orca-math-word-problems-200k")
    assert [problem.answer for problem in problems] == ["8", "1200.50", "3/8"]
    assert [problem.prompt_id for problem in problems] == ["0", "1", "2"]


def test_gsm8k_gives_what_follows_the_hashes_of_its_test_split(folders):
    problems = load_prompts(folders / "gsm8k")
    assert [problem.answer for problem in problems] == ["7", "200000"]
    (train,) = load_prompts(folders / "gsm8k", split="train")
    assert train.answer == "0"


def test_math_500_keeps_latex_and_its_own_names(folders):
    problems = load_prompts(folders / "MATH-500")
    assert [(problem.prompt, problem.answer, problem.prompt_id) for problem in problems] == MATH_500


def test_dapo_math_is_unpacked_and_freed_of_its_repeats(folders):
    problems = load_prompts(folders / "DAPO-Math-17k")
    assert [problem.prompt_id for problem in problems] == ["id-0", "id-1", "id-2", "id-3"]
    assert problems[2].prompt == f"{INSTRUCTION}What is 2 + 1?"
    assert [problem.answer for problem in problems] == ["1", "2", "3", "4"]
    assert len({problem.prompt for problem in load_prompts(folders / "DAPO-Math-17k", 4, rng=1)}) == 4
    with pytest.raises(ValueError, match="n is 5, but the split 'train' of .* holds only 4 problems"):
        load_prompts(folders / "DAPO-Math-17k", 5)
    with pytest.raises(ValueError, match=r"repeats names in its column 'extra_info.index' \('id-0' in rows 0 and 4\)"):
        load_prompts(folders / "DAPO-Math-17k", drop_repeats=False)
    assert load_prompts(folders / "DAPO-Math-17k", prompt_column="prompt.0.content") == problems
    processed = load_prompts(folders / "DAPO-Math-17k-Processed")
    assert [(p.prompt_id, p.prompt, p.answer) for p in processed][1] == ("id-1", "What is 1 + 1?", "2")


def test_a_known_id_is_loaded_with_its_config_split_and_revision(folders, monkeypatch):
    import datasets

    load, asked = datasets.load_dataset, []

    def from_folder(name, config, **options):
        asked.append((name, config, options["split"], options["revision"]))
        return load(str(folders / name.rpartition("/")[2]), config, split=options["split"])

    monkeypatch.setattr("gradstats.prompts.load.hub_problem", lambda *_args, **_options: None)
    monkeypatch.setattr(datasets, "load_dataset", from_folder)
    for name in ("openai/gsm8k", "open-r1/DAPO-Math-17k-Processed", "BytedTsinghua-SIA/DAPO-Math-17k"):
        load_prompts(name, 2, revision="abc")
    assert asked == [
        ("openai/gsm8k", "main", "test", "abc"),
        ("open-r1/DAPO-Math-17k-Processed", "all", "train", "abc"),
        ("BytedTsinghua-SIA/DAPO-Math-17k", None, "train", "abc"),
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_file_gives_the_same_subset_as_the_same_rows_in_a_data_set(tmp_path, suffix):
    frame = pd.DataFrame([(f"{n}?", f"it is {n} of them") for n in range(40)], columns=["question", "answer"])
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    like = {"like": "microsoft/orca-math-word-problems-200k"}
    from_file = load_prompts(path, 7, rng=3, **like)
    assert from_file == load_prompts(tmp_path, 7, rng=3, **like)
    assert all(problem.prompt == f"{problem.prompt_id}?" for problem in from_file)


def test_unknown_configs_splits_and_broken_folders_are_told(folders):
    with pytest.raises(ValueError, match="has no split 'dev'.*Unknown split"):
        load_prompts(folders / "MATH-500", split="dev")
    with pytest.raises(ValueError, match="has no config 'socratic' and split 'test'.*main"):
        load_prompts(folders / "gsm8k", config="socratic")
    (folders / "empty").mkdir()
    with pytest.raises(ValueError, match="the data set folder .*empty cannot be loaded"):
        load_prompts(folders / "empty")
    with pytest.raises(ValueError, match="like is 'gsm8k': choose a data set whose columns are known"):
        load_prompts(folders / "MATH-500", like="gsm8k")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("openai/gsm8k", True),
        ("embedded", False),
        ("reasoning-gym/chain_sum", False),
        ("data/p.jsonl", False),
        ("chain_sum", False),
    ],
)
def test_which_sources_are_on_the_hub(source, expected, tmp_path):
    assert is_on_hub(source) is expected
    assert not is_on_hub(tmp_path)
