"""A run from end to end: its files, interruptions, rejected changes, and where a profile takes its measurement from."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from small_runs import sampled_and_measured, small_experiment, vowels

import gradstats
import gradstats as gs
from gradstats.config.experiment import load_experiment, shipped_experiments
from gradstats.config.sections import PolicySection, PromptsSection, SamplingSection
from gradstats.gradients import MeasuringSession
from gradstats.runs.pipeline import measured_source, measurement_for_profile, run_experiment
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
    assert manifest["execution"]["processor_seconds"]["parts"] > 0


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
        ("policy: {name: x, size: 3}\nprompts: {source: y}", "policy has no setting 'size': it has name, dtype"),
        (
            "policy: {name: x}\nprompts: {source: y}\nsampling: {group_size: many}",
            r"sampling\.group_size is 'many': it must be an integer of at least 1 \(completions of each prompt",
        ),
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


SAMPLING = SamplingSection(group_size=2, max_new_tokens=8, reward="small_runs:vowels", seed=5)


@pytest.fixture(scope="module")
def run(policy_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    experiment = small_experiment(policy_folder, folder / "p.jsonl")
    sampled_and_measured(experiment, folder / "run")
    return folder / "run"


def test_runs_and_measurements_are_distinguished_from_policies(run, policy_folder, tmp_path):
    for measured in (run, run / "measurement", run / "measurement" / "shard-00000"):
        assert measured_source(str(measured)), measured
    for policy in (policy_folder, "embedded", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", str(tmp_path)):
        assert not measured_source(policy), policy


def test_a_run_is_read_and_its_policy_left_alone(run, monkeypatch):
    monkeypatch.setattr("gradstats.policy.load_policy", lambda *_, **__: pytest.fail("the policy was loaded"))
    policy, prompts = PolicySection(name=str(run)), PromptsSection(source="absent")
    measured = measurement_for_profile(str(run), policy, prompts, SAMPLING, progress=False)
    expected = gs.read_measurement(run / "measurement")
    np.testing.assert_array_equal(measured.sq_norms, expected.sq_norms)


@pytest.mark.filterwarnings("ignore:the model's generation_config")
def test_a_policy_is_sampled_and_measured_as_by_the_public_functions(run, policy_folder):
    prompts = PromptsSection(source=str(run.with_name("p.jsonl")), n=3, seed=1, settings={"id_column": "key"})
    policy = PolicySection(name=policy_folder, temperature=0.7)
    measured = measurement_for_profile(policy_folder, policy, prompts, SAMPLING, progress=False)
    loaded = gs.load_policy(policy_folder, temperature=0.7)
    problems = gs.load_prompts(prompts.source, 3, rng=1, id_column="key")
    rollouts = gs.sample(
        loaded, problems, group_size=2, max_new_tokens=8, reward="small_runs:vowels", rng=5, progress=False
    )
    expected = gs.measure(loaded, rollouts, progress=False)
    assert measured.metadata["policy"]["temperature"] == 0.7
    assert measured.rollouts.prompt_id.tolist() == expected.rollouts.prompt_id.tolist()
    np.testing.assert_allclose(measured.sq_norms, expected.sq_norms)
