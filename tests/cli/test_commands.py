"""The commands: what they print, that help is quick and light, that failures are one sentence and a non-zero exit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats
from gradstats.config.experiment import Experiment
from gradstats.runs.cost import estimate_cost

mpl.use("Agg")


@pytest.fixture(scope="module")
def run_directory(policy_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 6)))
    (folder / "tiny.yaml").write_text(
        f"""
        policy: {{name: {policy_folder}}}
        prompts: {{source: {folder / "p.jsonl"}}}
        sampling: {{group_size: 4, max_new_tokens: 12, reward: "small_runs:vowels"}}
        measurement: {{sketch_dim: 128}}
        """
    )
    return folder


def test_importing_and_helping_need_no_torch():
    code = (
        "import sys, gradstats, gradstats.cli.commands, gradstats.rollouts, gradstats.measurement, "
        "gradstats.estimators, gradstats.stats, gradstats.plots, gradstats.data, gradstats.runs.pipeline\n"
        "gradstats.fit_length_scaling, gradstats.compare, gradstats.plot_variance\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    light = (
        "import sys, gradstats.cli.commands\n"
        "print([n for n in ('torch', 'pandas', 'scipy', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_had():
    for name in gradstats.__all__:
        assert getattr(gradstats, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        gradstats.nothing  # noqa: B018


def test_alpha_gives_the_published_points_their_interval(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "alpha", points)
    assert code == 0
    assert "α = 0.7887  stderr 0.153  95% interval [0.475, 1.102]" in out


def test_alpha_as_json_and_by_prompt(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "alpha", points, "--json", "--confidence-level", "0.9")
    summary = json.loads(out)
    assert code == 0
    assert summary["alpha"] == pytest.approx(0.7887, abs=5e-5)
    assert summary["confidence_level"] == 0.9
    assert 0.475 < summary["alpha_low"] < summary["alpha_high"] < 1.102
    frame = pd.read_csv(points)
    frame.assign(prompt_id=np.arange(29) // 3).to_csv(points, index=False)
    clustered = json.loads(run(monkeypatch, capsys, "alpha", points, "--json")[1])
    assert clustered["interval"] == "cluster"
    assert clustered["alpha"] == summary["alpha"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,norm\n1,2\n", "has no column 'sq_norm' (it has length, norm)"),
        ("length,sq_norm\n1,2\n2,x\n3,4\n", "the column 'sq_norm' of"),
        ("length,sq_norm\n5,2\n5,3\n6,4\n", "lengths hold 2 distinct value(s)"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_points_end_in_one_sentence(monkeypatch, capsys, tmp_path, content, message):
    path = tmp_path / "points.csv"
    path.write_text(content)
    code, out, err = run(monkeypatch, capsys, "alpha", path)
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alpha", "absent.csv"], "absent.csv does not exist"),
        (["run", "absent.yaml"], "there is no experiment file absent.yaml"),
        (["variance", "absent"], "holds no measurement"),
        (["figures", "absent"], "is no run directory"),
        (
            ["sample", "./absent", "--prompts", "embedded", "--n", "2", "--out", "x.parquet"],
            "the model folder ./absent",
        ),
    ],
)
def test_missing_things_end_in_one_sentence(monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_run_ends_in_a_table_and_the_paths(monkeypatch, capsys, run_directory):
    words = ("run", run_directory / "tiny.yaml", "--out", run_directory / "run", "--no-progress")
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    assert "20 completions of 5 prompts" in out
    assert "α = " in out
    assert "length_weighted(alpha=0.8, loo=True)" in out
    for name in ("alpha.json", "variance.csv", "figures/length_scaling.pdf", "figures/variance.pdf", "manifest.json"):
        assert str(run_directory / "run" / name) in out
        assert (run_directory / "run" / name).exists()
    code, out, _ = run(monkeypatch, capsys, "variance", run_directory / "run", "--estimators", "rloo", "group_mean")
    assert code == 0
    assert "group_mean" in out
    code, out, _ = run(monkeypatch, capsys, "figures", run_directory / "run", "--venue", "neurips", "--formats", "svg")
    assert code == 0
    assert (run_directory / "run" / "figures" / "variance.svg").exists()


def test_run_with_other_settings_names_the_setting(monkeypatch, capsys, run_directory):
    run(monkeypatch, capsys, "run", run_directory / "tiny.yaml", "--out", run_directory / "run", "--no-progress")
    text = (run_directory / "tiny.yaml").read_text().replace("sketch_dim: 128", "sketch_dim: 64")
    (run_directory / "other.yaml").write_text(text)
    code, _, err = run(monkeypatch, capsys, "run", run_directory / "other.yaml", "--out", run_directory / "run")
    assert code == 1
    assert "was made with measurement.sketch_dim=128, not 64" in err


def test_a_dry_run_tells_the_cost_and_writes_nothing(monkeypatch, capsys, run_directory, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(monkeypatch, capsys, "run", run_directory / "tiny.yaml", "--dry-run")
    assert code == 0
    assert "would sample 20 completions of 5 prompts, at most 12 tokens each" in out
    assert "sampling" in out
    assert "disk" in out
    assert not list(tmp_path.iterdir())


def test_cost_estimates_follow_the_settings(policy_folder, run_directory):
    def cost(measurement=None, **sampling):
        settings = {"group_size": 4, "max_new_tokens": 12, "reward": "exact"} | sampling
        return estimate_cost(
            Experiment(
                name="c",
                policy={"name": policy_folder},
                prompts={"source": str(run_directory / "p.jsonl")},
                sampling=settings,
                measurement={"sketch_dim": 1000} | (measurement or {}),
            )
        )

    few, many = cost(), cost(group_size=8)
    assert (few.n_sequences, many.n_sequences) == (20, 40)
    assert many.n_tokens == 2 * few.n_tokens == 480
    assert many.disk_gib == pytest.approx(2 * few.disk_gib)
    assert few.disk_gib * 1024**3 == pytest.approx(20 * (4 * 1000 + 12 * 40))
    assert few.n_parameters == gradstats.load_policy(policy_folder).describe()["n_parameters"]
    assert min(few.sampling_seconds, few.measuring_seconds, few.memory_gib) > 0
    tokens = cost({"token_probes": 16, "token_exact": 0.25, "token_dtype": "float16"})
    scores = 20 * (12 * 16 * 2 + 3 * (1000 * 2 + 16))
    assert (tokens.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(scores)
    # The ghost engine, which auto takes where it can, holds no gradient of a whole sequence.
    assert few.memory_gib < cost({"engine": "loop"}).memory_gib < cost({"engine": "vmap"}).memory_gib


def test_measuring_tokens(monkeypatch, capsys, policy_folder, run_directory, tmp_path):
    rollouts, measured = tmp_path / "r.parquet", tmp_path / "m"
    words = ("--prompts", run_directory / "p.jsonl", "--max-new-tokens", 6, "--reward", "exact", "--no-progress")
    run(monkeypatch, capsys, "sample", policy_folder, *words, "--n", 2, "--out", rollouts)
    words = ("measure", policy_folder, "--rollouts", rollouts, "--out", measured, "--no-progress")
    words += ("--token-probes", 3, "--token-exact", 2, "--token-seed", 5, "--token-dtype", "float16")
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0
    assert "token scores are measured with eager attention" in err
    told = " ".join(err.split())
    assert re.search(r"W_T has a median relative standard error of \d+\.\d%, from 3 probes and 2 exact", told)
    assert "which is poor: raise token_exact, for example to 16, or token_probes" in told
    read = gradstats.read_measurement(measured)
    assert read.metadata["token_seed"] == 5
    assert {values.shape[1] for values in read.token_projections} == {3}
    assert max(map(len, read.heavy_positions)) == 2
    assert read.token_projections[0].dtype == np.float16
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 1
    assert re.search(r"the measurement takes up to 0\.0\d GiB, and .* has 0\.00 GiB left: measure with fewer", err)


def test_sample_then_measure_then_alpha(monkeypatch, capsys, policy_folder, run_directory):
    rollouts, measured = run_directory / "r.parquet", run_directory / "m"
    words = ("--prompts", run_directory / "p.jsonl", "--max-new-tokens", 10, "--reward", "exact", "--no-progress")
    code, out, err = run(monkeypatch, capsys, "sample", policy_folder, *words, "--out", rollouts)
    assert code == 0
    assert "note: the model's generation_config asks for temperature=0.6" in err
    assert "40 completions of 5 prompts" in out
    words = ("--rollouts", rollouts, "--out", measured, "--engine", "loop", "--no-progress")
    code, out, _ = run(monkeypatch, capsys, "measure", policy_folder, *words)
    assert code == 0
    assert "40 sequences measured with loop" in out
    fit = gradstats.fit_length_scaling(gradstats.read_measurement(measured))
    code, out, _ = run(monkeypatch, capsys, "alpha", measured)
    assert f"α = {fit.alpha:.4f}" in out


@pytest.mark.parametrize("what", ["experiments", "estimators", "data", "rewards"])
def test_lists(monkeypatch, capsys, what):
    code, out, _ = run(monkeypatch, capsys, "list", what)
    expected = {"experiments": "embedded", "estimators": "rloo", "data": "gloeckle2026", "rewards": "math"}
    assert code == 0
    assert expected[what] in out


def test_env_is_json(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "env")
    assert code == 0
    assert {"torch", "transformers", "gradstats"} <= set(json.loads(out)["versions"])


def test_an_interrupt_says_that_nothing_is_lost(monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradstats.config.experiment.load_experiment", interrupted)
    code, _, err = run(monkeypatch, capsys, "run", "embedded")
    assert code == 130
    assert "what was finished is kept" in err


def test_tracebacks_on_request(monkeypatch, capsys):
    monkeypatch.setenv("GRADSTATS_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        run(monkeypatch, capsys, "alpha", "absent.csv")


def test_settings_of_an_experiment_can_be_changed_from_the_command(monkeypatch, capsys, run_directory, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("run", run_directory / "tiny.yaml", "--dry-run", "--set")
    _, out, _ = run(monkeypatch, capsys, *words, "prompts.n=3", "sampling.group_size=2", "sampling.reward={exact: 1}")
    assert "would sample 6 completions of 3 prompts" in out
    for wrong, message in (
        ("prompts.m=3", "prompts.m: Extra inputs are not permitted"),
        ("prompts.n", "'prompts.n' is no setting: write it as name=value"),
        ("sampling.reward={exact", "the value of sampling.reward is '{exact', which is not YAML"),
    ):
        code, _, err = run(monkeypatch, capsys, *words, wrong)
        assert code == 1
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_sample_takes_settings_of_prompts_policy_template_and_several_rewards(
    monkeypatch, capsys, policy_folder, run_directory
):
    (run_directory / "q.jsonl").write_text(json.dumps({"question": "ab", "solution": "so #### 7"}))
    out = run_directory / "several.parquet"
    words = (
        "sample", policy_folder, "--prompts", run_directory / "q.jsonl", "--out", out, "--group-size", 2,
        "--max-new-tokens", 4, "--no-progress", "--system-prompt", "cd",
        "--prompt-settings", "prompt_column=question", "answer_column=solution", "answer_format=hashes",
        "--policy-settings", "allow_pickle=true", "--reward", "math=1", "exact=0.5",
    )  # fmt: skip
    code, printed, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    assert "2 completions of 1 prompts" in printed
    metadata = gradstats.read_rollouts(out).metadata
    assert metadata["reward"] == {"math": 1.0, "exact": 0.5}
    assert metadata["grading"]["completions"] == 2
    assert metadata["system_prompt"] == "cd"
    code, _, err = run(monkeypatch, capsys, *words, "--template-options", "enable_thinking=false")
    assert code == 1
    assert "does not use the template option 'enable_thinking'" in err
