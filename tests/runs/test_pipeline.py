"""A run from end to end: the files it writes, resuming after an interruption, rejected changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml
from small_runs import vowels

import gradstats
from gradstats.config.experiment import Experiment, load_experiment, shipped_experiments
from gradstats.gradients import MeasuringSession
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import run_experiment
from gradstats.sampling.plan import SamplingPlan

mpl.use("Agg")


@pytest.fixture(scope="module")
def experiment(policy_folder, tmp_path_factory) -> Experiment:
    prompts = tmp_path_factory.mktemp("prompts") / "problems.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 7)))
    return Experiment(
        name="tiny",
        policy={"name": policy_folder},
        prompts={"source": str(prompts)},
        sampling={"group_size": 4, "max_new_tokens": 16, "batch_size": 6, "reward": "small_runs:vowels"},
        measurement={"sketch_dim": 256},
        variance={"estimators": ["reinforce", "rloo", "length_weighted(alpha=0.8, loo=True)"]},
    )


@pytest.fixture(scope="module")
def finished(experiment, tmp_path_factory):
    return run_experiment(experiment, tmp_path_factory.mktemp("runs") / "whole", progress=False)


def test_a_run_leaves_the_whole_directory(finished):
    path = finished.run.path
    for name in (
        "experiment.yaml", "manifest.json", "alpha.json", "variance.csv", "tables/variance.csv",
        "variance.json", "tables/variance.tex", "tables/variance.md", "tables/alpha.tex", "report.html",
        "figures/length_scaling.pdf", "figures/length_scaling.png", "figures/length_scaling.csv",
        "figures/variance.pdf", "figures/variance.png",
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
    assert yaml.safe_load((path / "experiment.yaml").read_text()) == finished.run.experiment.model_dump()


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
    ours = pd.read_csv(finished.run.path / "variance.csv")
    assert ours["estimator"].tolist() == table["estimator"].tolist()
    np.testing.assert_allclose(ours["trace_cov"], table["trace_cov"], rtol=1e-3)
    np.testing.assert_allclose(ours["ratio_high"], table["ratio_high"], rtol=1e-2)


@pytest.mark.parametrize("moment", range(8))
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
    for name in ("alpha.json", "variance.csv", "figures/length_scaling.csv", "figures/variance.pdf"):
        assert (tmp_path / "run" / name).read_bytes() == (finished.run.path / name).read_bytes(), name


def test_a_finished_run_is_redrawn_without_sampling_or_measuring(finished, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("the model was touched")

    monkeypatch.setattr(SamplingPlan, "make", never)
    monkeypatch.setattr(MeasuringSession, "open", never)
    before = (finished.run.path / "variance.csv").read_bytes()
    run_experiment(finished.run.experiment, finished.run.path, progress=False)
    assert (finished.run.path / "variance.csv").read_bytes() == before


def test_leftovers_of_a_killed_writer_are_removed_not_read(experiment, finished, tmp_path):
    run = RunDirectory.open(tmp_path / "run", experiment)
    (run.rollouts / ".shard-00000.parquet.1.partial").write_bytes(b"PAR1")
    (run.measurement / ".shard-00000.1.partial").mkdir()
    run_experiment(experiment, tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert (run.path / "variance.csv").read_bytes() == (finished.run.path / "variance.csv").read_bytes()


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("sampling", "group_size", 2, r"sampling\.group_size=4, not 2: a run can grow and not shrink"),
        ("sampling", "seed", 1, r"sampling\.seed=0, not 1: choose another directory"),
        ("sampling", "reward", "exact", r"sampling\.reward=.* not 'exact': score its completions again with .*regrade"),
        ("prompts", "n", 3, r"prompts\.n=None, not 3: a run can grow and not shrink"),
        ("policy", "revision", "v2", r"policy\.revision=None, not 'v2': choose another directory"),
    ],
)
def test_other_settings_are_refused_by_name_and_lose_nothing(experiment, finished, section, name, value, message):
    other = experiment.model_copy(update={section: getattr(experiment, section).model_copy(update={name: value})})
    with pytest.raises(ValueError, match=message):
        run_experiment(other, finished.run.path, progress=False)
    assert yaml.safe_load((finished.run.path / "experiment.yaml").read_text()) == experiment.model_dump()


def test_settings_may_be_corrected_before_anything_was_sampled(experiment, tmp_path):
    wrong = experiment.model_copy(update={"policy": experiment.policy.model_copy(update={"name": "./absent"})})
    with pytest.raises(FileNotFoundError, match="the model folder ./absent does not exist"):
        run_experiment(wrong, tmp_path / "run", progress=False)
    assert run_experiment(experiment, tmp_path / "run", progress=False).comparison is not None


def test_problems_that_changed_under_a_run_are_refused(experiment, tmp_path, monkeypatch):
    problems = tmp_path / "problems.jsonl"
    problems.write_text(Path(experiment.prompts.source).read_text())
    moved = experiment.model_copy(update={"prompts": experiment.prompts.model_copy(update={"source": str(problems)})})
    draw = SamplingPlan.draw

    def stop_after_one(plan, batch, *args):
        if batch == 1:
            raise KeyboardInterrupt
        return draw(plan, batch, *args)

    monkeypatch.setattr(SamplingPlan, "draw", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(moved, tmp_path / "run", progress=False)
    problems.write_text(problems.read_text().replace("ab ab", "cd cd"))
    with pytest.raises(ValueError, match="the problems or the tokenizer have changed since .* was begun"):
        run_experiment(moved, tmp_path / "run", progress=False)


def test_the_analysis_may_change_between_calls(finished, experiment):
    other = experiment.model_copy(
        update={"variance": experiment.variance.model_copy(update={"estimators": ["rloo", "group_mean"]})}
    )
    result = run_experiment(other, finished.run.path, progress=False)
    assert pd.read_csv(result.run.path / "variance.csv")["estimator"].tolist() == ["rloo", "group_mean"]
    run_experiment(experiment, finished.run.path, progress=False)


def test_a_folder_of_other_things_is_not_taken_over(experiment, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not empty and is not a run directory"):
        run_experiment(experiment, tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_token_scores_travel_through_a_run_that_stops_half_way(experiment, tmp_path, monkeypatch):
    settings = {"sketch_dim": 64, "token_probes": 4, "token_exact": 0.5, "token_seed": 2}
    sampling = experiment.sampling.model_copy(update={"group_size": 2})
    section = experiment.measurement.model_copy(update=settings)
    resolved = experiment.model_copy(update={"measurement": section, "sampling": sampling})
    whole = run_experiment(resolved, tmp_path / "whole", progress=False)
    assert {scores.n_probes for scores in whole.measured.token_scores()} == {4}
    assert any("W_T has a median relative standard error of" in sentence for sentence in whole.run.remarks)
    assert any("measured with eager attention" in sentence for sentence in whole.run.remarks)

    measure, calls = MeasuringSession.measure, []

    def stops(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(self, *arguments, **options)

    monkeypatch.setattr(MeasuringSession, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(resolved, tmp_path / "halved", progress=False)
    resumed = run_experiment(resolved, tmp_path / "halved", progress=False)
    for name in ("token_projections", "heavy_positions", "heavy_sq_norms", "heavy_sketches"):
        for ours, theirs in zip(getattr(resumed.measured, name), getattr(whole.measured, name), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_measurement_that_does_not_fit_on_the_disk_is_refused_before_it_begins(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**10))
    monkeypatch.setattr(MeasuringSession, "open", lambda *_, **__: pytest.fail("the measurement has begun"))
    with pytest.raises(OSError, match=r"takes up to 0\.\d\d GiB, and .*measurement has 0\.00 GiB left: measure with"):
        run_experiment(experiment, tmp_path / "run", progress=False)


def test_data_that_allow_no_fit_become_a_remark_and_cost_nothing_else(experiment, tmp_path):
    short = experiment.model_copy(update={"sampling": experiment.sampling.model_copy(update={"max_new_tokens": 1})})
    result = run_experiment(short, tmp_path / "run", progress=False)
    assert result.fit is None
    assert any(remark.startswith("length scaling: ") for remark in result.run.remarks)
    assert result.comparison is not None
    assert (tmp_path / "run" / "variance.csv").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: {name: x}", "prompts is missing: give the problems"),
        ("policy: {name: x, size: 3}\nprompts: {source: y}", "policy has no setting 'size': it has name, dtype"),
        (
            "policy: {name: x}\nprompts: {source: y}\nsampling: {group_size: many}",
            r"sampling\.group_size is 'many': it must be an integer of at least 1 \(completions of each prompt",
        ),
        ("policy: {name: x", "is not YAML"),
        ("- a\n- b", "does not hold settings"),
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
    with pytest.raises(FileNotFoundError, match="no experiment file nothing, .*there are .*embedded"):
        load_experiment("nothing")


def test_the_published_setting_is_stated_explicitly():
    """30 orca-math problems, cap 1500, full model, one rollout per problem, an explicit sampler."""
    experiment = load_experiment("alpha_r1_distill")
    assert experiment.policy.name == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert (experiment.prompts.source, experiment.prompts.n) == ("microsoft/orca-math-word-problems-200k", 30)
    assert (experiment.sampling.max_new_tokens, experiment.sampling.group_size) == (1500, 1)
    assert experiment.measurement.engine == "vmap"
    text = shipped_experiments()["alpha_r1_distill"].read_text()
    stated = yaml.safe_load(text)["sampling"]
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"} <= set(stated)
