"""Commits that the names on the hub stand for when a run begins."""

from __future__ import annotations

import pytest

from gradstats.config.experiment import load_experiment
from gradstats.runs.growth import resolve_revisions


@pytest.fixture
def hub(monkeypatch):
    """A hub that records what it is asked for; ``hub["missing"]`` are the repositories it cannot give."""
    state = {"missing": {}, "asked": []}

    def problem(name, *_rest):
        return state["missing"].get(name)

    def commit(name, file, repo_type, revision):
        state["asked"].append((name, repo_type, revision))
        return f"commit of {name} at {revision}"

    monkeypatch.setattr("gradstats.runs.growth.hub_problem", problem)
    monkeypatch.setattr("gradstats.runs.growth.commit_of", commit)
    return state


def test_policy_and_data_set_are_resolved_at_the_revisions_asked_for(hub):
    settings = ("policy.revision=v1", "prompts.settings.revision=v2")
    experiment = load_experiment("alpha_r1_distill", settings)
    policy, prompts = experiment.policy.name, experiment.prompts.source
    assert resolve_revisions(experiment) == {
        "policy": f"commit of {policy} at v1", "prompts": f"commit of {prompts} at v2"
    }  # fmt: skip
    assert hub["asked"] == [(policy, "model", "v1"), (prompts, "dataset", "v2")]


def test_what_is_local_needs_no_hub(hub, experiment):
    hub["missing"] = dict.fromkeys([experiment.policy.name, experiment.prompts.source], "no network")
    assert resolve_revisions(experiment) == {}
    assert hub["asked"] == []


def test_only_what_is_missing_is_to_be_downloaded(hub):
    experiment = load_experiment("alpha_r1_distill", ("policy.revision=v1",))
    hub["missing"] = {experiment.policy.name: "offline"}
    with pytest.raises(ConnectionError) as error:
        resolve_revisions(experiment)
    assert str(error.value) == (
        "the Hugging Face hub cannot be reached from here (offline): where there is a connection run `hf download "
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --revision v1 --local-dir models/DeepSeek-R1-Distill-Qwen-1.5B`, "
        "copy the downloaded folders to the same places here, and run again with --set "
        "policy.name=models/DeepSeek-R1-Distill-Qwen-1.5B"
    )
    assert hub["asked"] == []
