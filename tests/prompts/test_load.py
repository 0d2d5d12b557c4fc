"""Known data sets, read by the `datasets` library from local files shaped like them."""

import json
import re
import sys

import pandas as pd
import pytest

from gradstats.prompts import Problem
from gradstats.prompts import load_prompts as load_prompts_for_user_source
from gradstats.prompts.load import file_problems, is_on_hub, load_prompts
from gradstats.prompts.problem import ColumnMapping, extract_reference

ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)]


def write_json_lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


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
        ("p.jsonl", b'{"prompt": "a", "answer": "1"}\n{"prompt"', r"line 2 of .*p\.jsonl is not JSON"),
        ("p.jsonl", b"[1]", r"line 1 of .* is not a JSON object: '\[1\]'"),
        ("p.jsonl", b"\n", "holds no problems"),
        ("p.csv", b"prompt,answer\na,1\nb,2,3\n", "p.csv cannot be read .*line 3"),
        ("p.csv", b'prompt,answer\na,"1\n', "p.csv cannot be read .*EOF inside string"),
        ("p.csv", b"", "p.csv cannot be read .*No columns"),
        ("p.csv", b"prompt,answer\n", "p.csv holds no problems"),
        ("p.csv", b"prompt,answer\na,\n", "row 0 of .*p.csv has no answer"),
        ("p.parquet", b"PAR1 but not really", "p.parquet cannot be read .*download it again"),
    ],
)
def test_truncated_files_are_named_with_the_line_where_they_have_lines(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_prompts(tmp_path / name)


def test_cells_keep_what_stands_in_them(tmp_path):
    rows = [{"prompt": "a\u2028b", "answer": 7, "key": 3}, {"prompt": "b\u0085c", "answer": -0.5, "key": None}]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    problems = load_prompts(tmp_path / "p.jsonl")
    assert [(problem.prompt, problem.answer) for problem in problems] == [("a\u2028b", "7"), ("b\u0085c", "-0.5")]
    (tmp_path / "p.csv").write_text("prompt,answer\na,007\nb,NA\nc,1e3\n")
    assert [problem.answer for problem in load_prompts(tmp_path / "p.csv")] == ["007", "NA", "1e3"]


def test_an_unreachable_data_set_gives_the_remedy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    import datasets

    def unreachable(*_args, **_options):
        raise ConnectionError("Couldn't reach the Hub")

    with pytest.raises(ConnectionError, match="openai/gsm8k.*could not be loaded .*hf download openai/gsm8k"):
        load_prompts("openai/gsm8k", 3)
    monkeypatch.setattr("gradstats.prompts.load.hub_problem", lambda *_args: None)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ConnectionError, match="openai/gsm8k.*could not be loaded .*reach the Hub.*--local-dir"):
        load_prompts("openai/gsm8k", 3)


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


def test_which_sources_are_on_the_hub(tmp_path):
    sources = ("openai/gsm8k", "embedded", "reasoning-gym/chain_sum", "data/p.jsonl", "chain_sum", tmp_path)
    assert [source for source in sources if is_on_hub(source)] == ["openai/gsm8k"]


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
    settings = {"prompt_column": "question", "answer_column": "solution", "id_column": "key", "answer_format": "hashes"}
    (problem,) = load_prompts(path, **settings)
    assert (problem.prompt_id, problem.prompt, problem.answer) == ("k9", "1+1?", "2")


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ('{"prompt": "a"}', {}, r"p\.jsonl has no column 'answer' \(it has prompt\).*answer_column"),
        ('{"prompt": "a", "answer": null}', {}, "row 0 of .* has no answer in 'answer'"),
        ('{"prompt": " ", "answer": "1"}', {}, "row 0 of .* has an empty 'prompt'"),
        ('{"prompt": "a", "answer": "1"}', {"answer_format": "latex"}, "answer_format must be one of text,"),
        ('{"prompt": "a", "answer": [1]}', {}, r"row 0 of .* holds a list in 'answer': .*answer_column=answer\.0"),
        ('{"prompt": "a", "answer": {"b": 1}}', {}, r"holds a dict in 'answer': .*answer_column=answer\.b"),
        ('{"prompt": "a", "answer": {"b": 1}}', {"answer_column": "answer.c"}, r"has no 'c' in 'answer' \(it has b\)"),
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
        ('{"prompt": 12, "answer": "1"}', {}, r"row 0 of .* holds an int in 'prompt' \(12\): a prompt is text"),
        ('{"prompt":"a","answer":"1","k":1}\n{"prompt":"b","answer":"1","k":1}', {"id_column": "k"}, "repeats names"),
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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (("absent.jsonl",), r"absent\.jsonl does not exist"),
        (("nothing",), "source 'nothing' is not known"),
        (("embedded", 100_001), "n is 100001: 'embedded' generates at most 100000 problems"),
        (("embedded",), "n is missing: 'embedded' generates its problems"),
    ],
)
def test_missing_and_unknown_sources_are_named(source, message):
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        load_prompts(*source)


@pytest.mark.parametrize(
    ("wrong", "hint"), [("seeed", "it has split, steps, falling"), ("step", "did you mean 'steps'?")]
)
def test_settings_of_the_embedded_problems_are_named(wrong, hint):
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


TEXT = """
from gradstats.prompts import Problem
def problems(n, rng, start=0):
    rows = [{"prompt_id": str(k), "prompt": f"{k} + {rng}?", "answer": str(k + rng)} for k in range(start, start + n)]
    return [Problem(**rows[0]), *rows[1:]]
def nothing(n, rng): return 3
def wrong(n, rng): return [{"prompt": "?"}]
def leaves(n, rng): raise SystemExit("no")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "user_problems_of_test.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("user_problems_of_test", None)


@pytest.mark.usefixtures("module")
def test_problems_or_mappings():
    found = load_prompts_for_user_source("user_problems_of_test:problems", 2, rng=5, start=1)
    assert found == [Problem("1", "1 + 5?", "6"), Problem("2", "2 + 5?", "7")]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "returned an int: return a list"),
        ("wrong", r"returned \{'prompt': '\?'\}: return gradstats.prompts.Problem, or mappings with the texts"),
        ("leaves", "failed: SystemExit: no"),
        ("problems(2)", "not of the form module:function"),
    ],
)
def test_other_returns_are_refused(function, message):
    with pytest.raises(ValueError, match=message):
        load_prompts_for_user_source(f"user_problems_of_test:{function}", 1)


@pytest.mark.parametrize(
    ("text", "answer_format", "expected"),
    [
        (" 7 ", "text", "7"),
        ("", "text", None),
        ("so 3 and 1,204.50 dollars in all.", "last_number", "1204.50"),
        ("9 * 2 = <<9*2=18>>18\n#### 1,018", "hashes", "1018"),
        ("18", "hashes", None),
        ("so 12-5 makes 7, not 8-3", "last_number", "3"),
        ("the numbers 1,2,3", "last_number", "3"),
        ("it is x=-3.", "last_number", "-3"),
        ("in 1,204,500 years", "last_number", "1204500"),
        ("x = -.5", "last_number", "-.5"),
        ("It is \u22125", "last_number", "-5"),
        ("a loss of -$5.", "last_number", "-5"),
        ("about 1.5e6 people", "last_number", "1.5e6"),
        ("#### 1,234,567.50", "hashes", "1234567.50"),
        ("#### (1,2)", "hashes", "(1,2)"),
        ("#### 1,000, 2,000", "hashes", "1000, 2000"),
        ("#### 1,2", "hashes", "1,2"),
    ],
)
def test_reference_answers_are_found_in_each_format(text, answer_format, expected):
    assert extract_reference(text, answer_format) == expected


@pytest.mark.parametrize(
    "text",
    [
        "It takes 2 1/2 hours.", "2½ hours", "half, or ½", "3 and 1/2", "10^6 people", "10⁶", "2**10", "2^{10}",
        "3 × 10^5",
        "1 000 000 people", "1_000", "1'000", "1.000.000", "1,23,456", "3,5", "at 12:30", "2024-01-05", "1/2/3",
        "it is − 5", "page 3 4", r"\frac{1}{2}", r"\sqrt{2}",
    ],
)  # fmt: skip
def test_digits_without_a_plain_reading_are_not_a_last_number(text):
    assert extract_reference(f"of 7 at first. {text}", "last_number") is None
