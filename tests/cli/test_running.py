"""Running, sampling and measuring from the command line: options, what is printed, what is written."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from command_line import run
from rich.console import Console
from saved_runs import saved_sweep
from small_runs import only_two_figures

import gradstats as gs
from gradstats.analyses.numbers import format_estimate
from gradstats.cli.running import show_sweep
from gradstats.config.experiment import experiment_schema, load_experiment
from gradstats.system.files import to_json


def test_run_ends_in_a_table_and_the_paths(answered, monkeypatch, capsys, run_directory):
    only_two_figures(monkeypatch)
    words = ("run", run_directory / "tiny.yaml", "--out", run_directory / "run", "--no-progress")
    out = answered(*words)
    assert "tiny   5 prompts × 4 completions · reward " in out
    assert "\n  α      " in out
    assert "samples for equal noise, rloo = 1" in out
    assert f"  {run_directory / 'run' / 'report.html'}   figures and tables" in out
    assert max(map(len, out.splitlines())) <= max(80, len(str(run_directory)) + 40)
    assert len(out.splitlines()) <= 25
    out = answered(*words, "--set", "figures.formats=[pdf]", "--all", "--notes")
    assert "slope 2α" in out
    assert "ratios of all rows" in out
    assert "Length exponent α of each block of parameters" in out
    assert "note: " in out
    summary = json.loads((run_directory / "run" / "alpha.json").read_text())
    assert "n-policy" in summary["sentences"][0]  # the verdict on the sampler, beside α
    assert summary["sentences"][0] in " ".join(out.split())
    assert {"curvature", "without_truncated", "most_influential_prompt", "by_block", "mean_scaling"} <= set(summary)
    for name in ("alpha.json", "variance.csv", "figures/length_scaling.pdf", "figures/variance.pdf", "manifest.json"):
        assert (run_directory / "run" / name).exists()
    assert f"{run_directory / 'run'}: variance.csv|json, alpha.csv|json, manifest.json, report.html" in out
    assert f"{run_directory / 'run' / 'figures'}: " in out


#: Options of an experiment without a file, and the settings that they are.
_OPTIONS = {
    "n": ("prompts.n", 5), "group-size": ("sampling.group_size", 4),
    "max-new-tokens": ("sampling.max_new_tokens", 12), "reward": ("sampling.reward", "small_runs:vowels"),
}  # fmt: skip


def test_a_run_without_a_file_is_that_of_the_file_which_init_writes(monkeypatch, capsys, run_directory, tmp_path):
    monkeypatch.chdir(tmp_path)
    policy = yaml.safe_load((run_directory / "tiny.yaml").read_text())["policy"]["name"]
    words = ["--policy", policy, "--prompts", run_directory / "p.jsonl"]
    words += [word for option, (_, value) in _OPTIONS.items() for word in (f"--{option}", value)]
    words += ["--set", "measurement.sketch_dim=128", "figures.formats=[]"]
    assert run(monkeypatch, capsys, "init", "mine", *words)[0] == 0
    name = f"{Path(policy).name}_p"
    expected = load_experiment(tmp_path / "mine.yaml", [f"name={name}"])
    called = []
    monkeypatch.setattr("gradstats.runs.cost.estimate_cost", lambda *_, **__: None)
    monkeypatch.setattr("gradstats.cli.terminal.show_cost", lambda made, *_: called.append(made))
    assert run(monkeypatch, capsys, "run", *words, "--dry-run") == (0, "", "")
    monkeypatch.setattr("gradstats.runs.pipeline.run_experiment", lambda *made, **_: called.extend(made))
    code, _, err = run(monkeypatch, capsys, "run", *words)
    assert (code, called) == (0, [expected, expected, Path("runs") / name])
    assert f"5 prompts × 4 completions of at most 12 tokens → runs/{name}; the same command resumes" in err
    assert called[0].folder == called[1].folder == expected.folder == tmp_path


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


NEW = "run --policy embedded --prompts embedded"
SAMPLE = "sample embedded --prompts embedded --n 2 --out x.parquet"
#: Words of a command → why it is refused, before anything is written.
REFUSED = {
    "run": "--policy and --prompts and FILE are missing: name an experiment file, or what is measured, as in grads",
    "run --policy embedded --n 3": "--prompts and FILE are missing",
    "run embedded --policy mine --group-size 4": (
        "embedded and --policy, --group-size are given, and a file has these settings: give the options without a "
        "file, or change the file's settings with --set policy.name=mine sampling.group_size=4"
    ),
    f"{NEW} --n 0": "prompts.n (--n) is 0: it must be an integer of at least 1",
    f"{NEW} --max-new-tokens 0": "sampling.max_new_tokens (--max-new-tokens) is 0",
    f"{NEW} --reward exakt": "did you mean 'exact'",
    f"{NEW} --set sampling.group_sise=3": "sampling has no setting 'group_sise'",
    f"{NEW} --set name=a/b": "name is 'a/b': it must be a name for a folder",
    f"{SAMPLE} --group-size 0": "group_size is 0: it must be an integer of at least 1 (completions of each prompt)",
    f"{SAMPLE} --policy-settings temperatur=1": "the policy has no setting 'temperatur': did you mean 'temperature'?",
    f"{SAMPLE} --policy-settings dtype=float8": "dtype is 'float8': choose one of float32, float64, bfloat16, float16",
    "init mine --reward exakt": "did you mean 'exact'",
    "init mine --set sampling.group_sise=3": "sampling has no setting 'group_sise': did you mean 'group_size'?",
    "init mine --n 0": "prompts.n (--n) is 0: it must be an integer of at least 1",
}


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_said_in_one_sentence_and_nothing_written(words, refused, tmp_path):
    assert REFUSED[words] in refused(*words.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("patched", "vary", "said"),
    [
        ("pipeline.run_experiment", "", "another process analyses the run, or has just done so"),
        ("sweep.run_sweep", "vary: {sampling.seed: [0, 1]}\n", "another process of the sweep still works on it"),
    ],
)
def test_a_process_that_is_not_the_last_says_so(monkeypatch, capsys, run_directory, tmp_path, patched, vary, said):
    monkeypatch.setattr(f"gradstats.runs.{patched}", lambda *_, **__: None)
    (tmp_path / "e.yaml").write_text((run_directory / "tiny.yaml").read_text() + vary)
    code, out, err = run(monkeypatch, capsys, "run", tmp_path / "e.yaml", "--out", tmp_path / "out")
    assert (code, out) == (0, "")
    assert said in " ".join(err.split())


def test_settings_without_set_are_refused_with_the_remedy(refused, monkeypatch, capsys, run_directory, tmp_path):
    words = ("prompts.n=2", "sampling.seed=3", "--out", tmp_path / "out")
    assert "settings of the experiment go after --set: --set prompts.n=2 sampling.seed=3" in refused(
        "run", run_directory / "tiny.yaml", *words
    )
    assert not (tmp_path / "out").exists()
    # A file may have such a name.
    (tmp_path / "n=2.yaml").write_text("prompts: {m: 2}")
    _, _, err = run(monkeypatch, capsys, "run", tmp_path / "n=2.yaml")
    assert "--set" not in err


def test_references_that_are_misread_are_named_before_anything_is_sampled(monkeypatch, capsys, run_directory, tmp_path):
    answers = ["7", "12:30", "2 2/3", "2 hours 30 minutes"]
    rows = [{"prompt": f"ab {number}", "answer": answer} for number, answer in enumerate(answers)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("run", run_directory / "tiny.yaml", "--set", f"prompts.source={tmp_path / 'p.jsonl'}", "prompts.n=4")
    words += ("prompts.settings={}", "sampling.reward=math", "variance.estimators=[rloo]", "--out", tmp_path / "run")
    for more in (("--dry-run",), ()):
        code, _, err = run(monkeypatch, capsys, *words, *more)
        assert code == 0
        said = " ".join(err.split())
        assert said.count("math-verify does not read 2 of 4 reference answers as they are written") == 1
        assert "('1': '12:30' as 2/5; '3': '2 hours 30 minutes' as 30)" in said
    assert "'12:30' as 2/5" in " ".join(json.loads((tmp_path / "run" / "manifest.json").read_text())["remarks"])


def test_a_dry_run_states_the_cost_with_the_settings_given_and_writes_nothing(
    answered, refused, monkeypatch, run_directory, tmp_path
):
    monkeypatch.chdir(tmp_path)
    words = ("run", run_directory / "tiny.yaml", "--dry-run", "--set")
    out = answered(*words, "prompts.n=3", "sampling.group_size=2", "sampling.reward={exact: 1}")
    assert "would sample 6 completions of 3 prompts, at most 12 tokens each" in out
    assert {"sampling", "disk"} <= set(out.split())
    for wrong, message in (
        ("prompts.n", "'prompts.n' is not a setting: write it as name=value"),
        ("sampling.reward={exact", "the value of sampling.reward is '{exact', which is not YAML"),
        (f"name={'x' * 300}", "it must be a name for a folder: not empty"),
    ):
        assert message in refused(*words, wrong)
    assert not list(tmp_path.iterdir())


def test_sample_then_measure_then_alpha(answered, monkeypatch, capsys, policy_folder, run_directory):
    rollouts, measured = run_directory / "r.parquet", run_directory / "m"
    tempered = ("--no-progress", "--policy-settings", "temperature=0.7")
    words = ("--prompts", run_directory / "p.jsonl", "--max-new-tokens", 10, "--reward", "exact", *tempered)
    code, out, err = run(monkeypatch, capsys, "sample", policy_folder, *words, "--out", rollouts)
    assert (code, "40 completions of 5 prompts" in out) == (0, True)
    assert "note: the model's generation_config specifies temperature=0.6" in err
    metadata = gs.read_rollouts(rollouts).metadata
    assert (metadata["policy"]["temperature"], metadata["sampler"]["temperature"]) == (0.7, 0.7)
    limits = ("--sketch-dim", 16, "--sketch-seed", 3, "--token-budget", 40, "--memory-gib", 0.5, "--engine", "loop")
    out = answered("measure", policy_folder, "--rollouts", rollouts, "--out", measured, *limits, *tempered)
    first, *sentence = out.splitlines()
    assert first.startswith("40 sequences measured with loop")
    assert sentence[0].startswith("Sampler and scorer")
    assert max(map(len, sentence)) <= 80
    found = gs.read_measurement(measured)
    assert (found.metadata["policy"]["temperature"], found.metadata["sketch_seed"]) == (0.7, 3)
    fit = gs.fit_length_scaling(found)
    assert f"  α      {format_estimate(fit.alpha, *fit.confidence_interval())}" in answered("alpha", measured)


def test_sample_takes_settings_of_prompts_policy_template_and_several_rewards(
    answered, refused, policy_folder, run_directory
):
    (run_directory / "q.jsonl").write_text(json.dumps({"question": "ab", "solution": "so #### 7"}))
    out = run_directory / "several.parquet"
    words = (
        "sample", policy_folder, "--prompts", run_directory / "q.jsonl", "--out", out, "--group-size", 2,
        "--max-new-tokens", 4, "--no-progress", "--system-prompt", "cd",
        "--prompt-settings", "prompt_column=question", "answer_column=solution", "answer_format=hashes",
        "--policy-settings", "allow_pickle=true", "--reward", "math=1", "exact=0.5",
    )  # fmt: skip
    printed = answered(*words)
    assert "2 completions of 1 prompts" in printed
    metadata = gs.read_rollouts(out).metadata
    assert metadata["reward"] == {"math": 1.0, "exact": 0.5}
    assert metadata["grading"]["completions"] == 2
    assert metadata["system_prompt"] == "cd"
    assert "does not use the template option 'enable_thinking'" in refused(
        *words, "--template-options", "enable_thinking=false"
    )


def test_measuring_tokens(monkeypatch, capsys, policy_folder, run_directory, tmp_path):
    rollouts, measured = tmp_path / "r.parquet", tmp_path / "m"
    words = ("--prompts", run_directory / "p.jsonl", "--max-new-tokens", 6, "--reward", "exact", "--no-progress")
    run(monkeypatch, capsys, "sample", policy_folder, *words, "--n", 2, "--out", rollouts)
    words = ("measure", policy_folder, "--rollouts", rollouts, "--out", measured, "--no-progress")
    words += ("--token-probes", 3, "--token-exact", 2, "--token-seed", 5, "--token-dtype", "float16")
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0
    assert "token scores are measured with eager attention" in err
    sentences = " ".join(err.split())
    assert re.search(r"W_T has a median relative standard error of \d+\.\d%, from 3 probes and 2 exact", sentences)
    assert "which is poor: raise token_exact, for example to 16, or token_probes" in sentences
    read = gs.read_measurement(measured)
    assert read.metadata["token_seed"] == 5
    assert {values.shape[1] for values in read.token_projections} == {3}
    assert max(map(len, read.heavy_positions)) == 2
    assert read.token_projections[0].dtype == np.float16
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 1
    assert re.search(r"the measurement takes up to [\d.]+ MiB, and .* has 0\.0 MiB left: measure with fewer", err)


@pytest.mark.usefixtures("_here")
def test_the_options_and_settings_given_are_those_of_the_file(answered, tmp_path):
    words = ("--n", 6, "--group-size", 2, "--reward", "exact", "--set", "measurement.engine=ghost", "prompts.seed=3")
    out = answered("init", "mine", *words)
    assert "gradstats run mine.yaml --dry-run" in out
    made = load_experiment(tmp_path / "mine.yaml")
    assert (made.name, made.policy.name, made.prompts.source) == ("mine", "embedded", "embedded")
    assert (made.prompts.n, made.prompts.seed, made.sampling.group_size, made.sampling.reward) == (6, 3, 2, "exact")
    assert (made.sampling.max_new_tokens, made.measurement.engine) == (400, "ghost")
    assert (tmp_path / "experiment.schema.json").read_text() == to_json(experiment_schema()) + "\n"


@pytest.mark.usefixtures("_here")
def test_a_terminal_is_asked_for_what_was_not_given(tmp_path, monkeypatch, capsys):
    asked = []

    def answer(question, default):
        asked.append(question)
        return "5" if question.startswith("group size") else default

    monkeypatch.setattr("gradstats.cli.running.Prompt.ask", answer)
    monkeypatch.setattr("gradstats.cli.running._is_terminal", lambda: True)
    run(monkeypatch, capsys, "init", "mine.yaml", "--n", 7)
    made = load_experiment(tmp_path / "mine.yaml")
    assert (made.prompts.n, made.sampling.group_size, made.sampling.reward) == (7, 5, None)
    assert [question.split(" (")[0] for question in asked] == [
        "policy", "prompts", "group size", "max new tokens", "reward"
    ]  # fmt: skip
    asked.clear()
    run(monkeypatch, capsys, "init", "other", "--no-ask")
    assert asked == []


@pytest.mark.usefixtures("_here")
def test_nothing_is_replaced(refused, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text("mine")
    (tmp_path / "experiment.schema.json").write_text("{}")
    assert "mine.yaml exists and is not replaced: choose another name" in refused("init", "mine")
    code, _, err = run(monkeypatch, capsys, "init", "new")
    assert code == 0
    assert "experiment.schema.json is not the schema of this version and was left" in err
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    assert (tmp_path / "experiment.schema.json").read_text() == "{}"


@pytest.mark.usefixtures("_here")
def test_a_function_that_is_not_written_yet_is_remarked_on(tmp_path, monkeypatch, capsys):
    _, _, err = run(monkeypatch, capsys, "init", "mine", "--reward", "parts/later.py:score")
    assert "there is no file parts/later.py" in err
    assert load_experiment(tmp_path / "mine.yaml").sampling.reward == "parts/later.py:score"


def test_a_dry_run_names_the_cells_and_who_draws_for_whom(tmp_path, monkeypatch, capsys):
    data = {
        "policy": {"name": "embedded"}, "prompts": {"source": "embedded", "n": 4},
        "sampling": {"group_size": 2, "max_new_tokens": 8}, "vary": {"measurement.sketch_dim": [64, 128]},
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(data))
    code, out, notes = run(monkeypatch, capsys, "run", tmp_path / "s.yaml", "--dry-run")
    assert code == 0
    assert "s sketch_dim=64: would sample 8 completions of 4 prompts" in out
    assert "sketch_dim=128 takes the completions of sketch_dim=64: it samples nothing" in out + notes
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("temperatures", "missing", "pairs"),
    [
        ((0.6, 1.0), ["temperature=1.0"], []),
        ((0.6, 0.8, 1.0), [], [(0.8, 0.6), (1.0, 0.6), (1.0, 0.8)]),
        ((0.5, 0.6, 0.7, 0.8, 0.9), [], [(0.6, 0.5), (0.7, 0.5), (0.8, 0.5), (0.9, 0.5)]),
    ],
)
def test_a_sweep_is_summed_up_with_differences_of_few_cells_for_every_pair(
    tmp_path, capsys, monkeypatch, temperatures, missing, pairs
):
    found = gs.read_sweep(saved_sweep(tmp_path / "sweep", temperatures=temperatures, missing=missing))
    for columns in (80, 160):
        monkeypatch.setattr("gradstats.cli.terminal.console", Console(width=columns, highlight=False))
        show_sweep(found)
        out, notes = capsys.readouterr()
        assert max(map(len, out.splitlines())) <= columns
        assert "1.30 [" in out
        assert all(f"{name} has no results yet" in out + notes for name in missing)
        lines = out.partition("differences, paired over prompts")[2].splitlines()
        named = [line.split()[:2] for line in lines if "mean length" in line]
        assert named == [[f"temperature={one}" for one in pair] for pair in pairs]
