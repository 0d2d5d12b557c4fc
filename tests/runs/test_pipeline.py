"""A run from end to end: its files, interruptions and rejected changes."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from small_runs import vowels

import gradstats
from gradstats.config.experiment import load_experiment, shipped_experiments
from gradstats.gradients import MeasuringSession
from gradstats.runs.pipeline import run_experiment
from gradstats.sampling.plan import SamplingPlan


def test_a_run_leaves_the_whole_directory(drawn):
    path = drawn.run.path
    for name in (
        "experiment.yaml", "manifest.json", "alpha.json", "variance.csv", "alpha.csv",
        "variance.json", "tables/variance.tex", "tables/variance.md", "tables/alpha.tex", "report.html",
        "figures/length_scaling.png", "figures/length_scaling.csv", "figures/variance.png",
        "rollouts/shard-00000.parquet", "measurement/shard-00003/tensors.safetensors",
    ):  # fmt: skip
        assert (path / name).stat().st_size > 0, name
    assert not list(path.rglob("*.partial"))
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["n_sequences"] == 24
    assert manifest["n_prompts"] == 6
    assert manifest["sampler"]["top_k"] == 0
    assert manifest["generation_config_not_followed"]["top_k"] == 3
    assert any("it is not followed" in remark for remark in manifest["remarks"])
    assert {"sampling", "measuring", "analysis"} <= set(manifest["timings"])
    assert set(manifest["seeds"]) == {"prompts", "sampling", "sketch", "variance"}
    settings = drawn.run.experiment.model_dump(exclude={"execution"})
    assert yaml.safe_load((path / "experiment.yaml").read_text()) == settings
    assert manifest["execution"]["executor"] == "local"
    assert manifest["execution"]["processor_seconds"]["shards"] > 0


def test_its_numbers_are_those_of_the_public_functions(finished, experiment):
    policy = gradstats.load_policy(experiment.policy.name)
    problems = gradstats.load_prompts(experiment.prompts.source)
    with pytest.warns(UserWarning, match="not followed"):
        rollouts = gradstats.sample(
            policy, problems, group_size=4, max_new_tokens=16, batch_size=6, reward=vowels, progress=False
        )
    measured = gradstats.measure(policy, rollouts, sketch_dim=256, progress=False)
    fit = gradstats.fit_length_scaling(measured)
    written = json.loads((finished.run.path / "alpha.json").read_text())
    assert written["alpha"] == pytest.approx(fit.alpha, rel=1e-4)
    assert written["alpha_low"] == pytest.approx(fit.confidence_interval()[0], rel=1e-3)
    with pytest.warns(UserWarning, match="prompts"):
        table = gradstats.compare(measured, experiment.variance.estimators).to_frame()
    written_table = pd.read_csv(finished.run.path / "variance.csv")
    assert written_table["estimator"].tolist() == table["estimator"].tolist()
    np.testing.assert_allclose(written_table["trace_cov"], table["trace_cov"], rtol=1e-3)
    np.testing.assert_allclose(written_table["ratio_high"], table["ratio_high"], rtol=1e-2)


@pytest.mark.parametrize(
    "moment", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow), 7]
)
def test_an_interrupted_run_ends_with_the_same_numbers(experiment, finished, tmp_path, monkeypatch, moment):
    """Four batches are sampled and four shards measured; the run is stopped during each and then resumed."""
    calls = {"left": moment}

    def interrupting(function):
        def wrapped(*args, **kwargs):
            if calls["left"] == 0:
                calls["left"] = -1
                raise KeyboardInterrupt
            calls["left"] -= 1
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(SamplingPlan, "draw", interrupting(SamplingPlan.draw))
    monkeypatch.setattr(MeasuringSession, "measure", interrupting(MeasuringSession.measure))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", progress=False)
    shards = sorted((tmp_path / "run" / "rollouts").glob("*.parquet"))
    assert len(shards) == min(moment, 4)
    before = {shard: shard.stat().st_mtime_ns for shard in shards}
    run_experiment(experiment, tmp_path / "run", progress=False)
    assert all(shard.stat().st_mtime_ns == when for shard, when in before.items())
    for name in ("alpha.json", "variance.csv", "tables/length_scaling.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (finished.run.path / name).read_bytes(), name


def test_a_finished_run_is_redrawn_without_sampling_or_measuring(drawn, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("the model was touched")

    monkeypatch.setattr(SamplingPlan, "make", never)
    monkeypatch.setattr(MeasuringSession, "open", never)
    before = (drawn.run.path / "variance.csv").read_bytes()
    run_experiment(drawn.run.experiment, drawn.run.path, progress=False)
    assert (drawn.run.path / "variance.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: {name: x}", "prompts is missing: give the problems"),
        ("policy: {name: x", "is not YAML"),
        ("- a\n- b", "does not contain settings"),
    ],
)
def test_wrong_experiment_files_name_the_setting(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_experiment(path)


def test_every_shipped_experiment_loads():
    assert {"embedded", "smollm2", "alpha_r1_distill"} <= set(shipped_experiments())
    for name in shipped_experiments():
        experiment = load_experiment(name)
        assert experiment.description, name
        for label in experiment.variance.estimators:
            assert gradstats.estimators.get(label)
    with pytest.raises(FileNotFoundError, match="no experiment file nothing, .*: `gradstats list` and"):
        load_experiment("nothing")


def test_the_published_setting_is_stated_explicitly():
    """30 orca-math problems, cap 1500, full model, one rollout per problem, an explicit sampler."""
    experiment = load_experiment("alpha_r1_distill")
    assert experiment.policy.name == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert (experiment.prompts.source, experiment.prompts.n) == ("microsoft/orca-math-word-problems-200k", 30)
    assert (experiment.sampling.max_new_tokens, experiment.sampling.group_size) == (1500, 1)
    assert experiment.measurement.engine == "auto"
    text = shipped_experiments()["alpha_r1_distill"].read_text()
    stated = yaml.safe_load(text)["sampling"]
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"} <= set(stated)
