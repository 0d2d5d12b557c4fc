"""An experiment's problems, policy and plan, at the revisions that a run keeps to."""

import json

import pytest

import gradstats
from gradstats.config.experiment import Experiment
from gradstats.runs.directory import RunDirectory
from gradstats.runs.sampling_step import (
    behaviour_policy,
    experiment_policy,
    experiment_problems,
    sample_shards,
    sampling_plan,
)
from gradstats.sampling.plan import SamplingPlan


def test_problems_and_policy_are_those_of_the_public_functions(experiment):
    settings = experiment.prompts.model_copy(update={"n": 3, "seed": 4})
    chosen = experiment.model_copy(update={"prompts": settings})
    expected = gradstats.load_prompts(settings.source, 3, rng=4)
    assert experiment_problems(chosen, {}) == expected
    cooler = experiment.model_copy(update={"policy": experiment.policy.model_copy(update={"temperature": 0.7})})
    assert (
        experiment_policy(cooler, {}).describe()
        == gradstats.load_policy(experiment.policy.name, temperature=0.7).describe()
    )


def test_the_plan_has_every_completion_once_in_batches(experiment):
    plan = sampling_plan(experiment, {})
    pairs = [pair for batch in plan.rows for pair in batch]
    assert sorted(pairs) == [(prompt, number) for prompt in range(6) for number in range(4)]
    assert [len(batch) for batch in plan.rows] == [6, 6, 6, 6]


@pytest.mark.parametrize("resolved", ["c", None, "absent"])
def test_the_commits_of_a_run_go_before_the_revisions_asked_for(experiment, monkeypatch, resolved):
    policy, given = gradstats.load_policy(experiment.policy.name), []
    monkeypatch.setattr("gradstats.policy.policy.load_policy", lambda _, **settings: given.append(settings) or policy)
    monkeypatch.setattr("gradstats.prompts.load.load_prompts", lambda *_, **settings: given.append(settings) or [])
    changes = {
        "policy": experiment.policy.model_copy(update={"revision": "asked"}),
        "prompts": experiment.prompts.model_copy(update={"settings": {"revision": "asked"}}),
    }
    commits = {} if resolved == "absent" else dict.fromkeys(changes, resolved)
    assert experiment_policy(experiment.model_copy(update=changes), commits) is policy
    experiment_problems(experiment.model_copy(update=changes), commits)
    assert [settings["revision"] for settings in given] == ["c" if resolved == "c" else "asked"] * 2


def test_the_policy_that_samples_may_be_an_earlier_checkpoint():
    from gradstats.policy.checkpoint import checkpoint_names

    earlier = checkpoint_names()[0]
    experiment = Experiment(
        name="e",
        policy={"name": "embedded", "temperature": 0.9},
        behaviour_policy={"revision": earlier},
        prompts={"source": "embedded", "n": 2},
        sampling={"max_new_tokens": 16},
    )
    assert experiment.settled_settings()["behaviour_policy.revision"] == earlier
    sampler, scored = sampling_plan(experiment, {}).policy, experiment_policy(experiment, {})
    assert (sampler.temperature, scored.temperature) == (0.9, 0.9)
    weights = [next(iter(policy.model.parameters())) for policy in (sampler, scored)]
    assert not (weights[0] == weights[1]).all()
    assert behaviour_policy(experiment.model_copy(update={"behaviour_policy": {}}), {}).describe() == scored.describe()


def test_only_the_missing_shard_is_drawn_again_with_the_same_completions(experiment, finished, tmp_path, monkeypatch):
    run = RunDirectory.open(tmp_path / "run", experiment)
    sample_shards(run, progress=False)
    complete = json.loads((run.rollouts / "complete.json").read_text())
    assert complete.pop("checksum").startswith("sha256:")
    assert complete == {"n_shards": 4, "n_completions": 24, "n": None, "group_size": 4}
    (run.rollouts / "shard-00002.parquet").unlink()
    (run.rollouts / "complete.json").unlink()
    draw, drawn = SamplingPlan.draw, []
    monkeypatch.setattr(
        SamplingPlan, "draw", lambda plan, batch, *args: (drawn.append(batch), draw(plan, batch, *args))[1]
    )
    sample_shards(run, progress=False)
    assert drawn == [2]
    for shard in run.rollouts.glob("*.parquet"):
        assert shard.read_bytes() == (finished.run.rollouts / shard.name).read_bytes()
