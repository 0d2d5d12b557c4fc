"""Where a profile's measurement comes from."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import sampled_and_measured, small_experiment

import gradstats as gs
from gradstats.config.sections import PolicySection, PromptsSection, SamplingSection
from gradstats.runs.pipeline import measured_source, measurement_for_profile

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
