"""The sampling step: shards that are missing are drawn, and only those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.sampling_step import sample_shards
from gradstats.sampling.plan import SamplingPlan


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


def test_a_complete_run_loads_no_policy(experiment, finished, monkeypatch):
    monkeypatch.setattr("gradstats.runs.sampling_step.sampling_plan", lambda *_: pytest.fail("the policy was loaded"))
    sample_shards(RunDirectory.open(finished.run.path, experiment), progress=False)
