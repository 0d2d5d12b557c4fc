"""Extending a finished run: existing shards stay unchanged, and additions are reproducible."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from small_runs import sampled_and_measured as run
from small_runs import small_experiment

from gradstats.config.experiment import load_experiment
from gradstats.gradients import MeasuringSession
from gradstats.measurement.measurement import read_measurement
from gradstats.rollouts.table import read_rollouts
from gradstats.runs import sampling_step
from gradstats.runs.growth import rounds_of
from gradstats.runs.pipeline import run_experiment
from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.revisions import resolve_revisions
from gradstats.system.files import read_json, write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("growth")


@pytest.fixture(scope="module")
def small(policy_folder, folder):
    return lambda **changes: small_experiment(policy_folder, folder / "problems.jsonl", **changes)


@pytest.fixture(scope="module")
def begun(small, folder):
    """A finished run of four prompts with two completions each."""
    run(small(), folder / "begun")
    return folder / "begun"


@pytest.fixture
def path(begun, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(begun, tmp_path / "run")


@pytest.fixture(scope="module")
def grown_twice(small, begun, folder):
    """The finished run, extended by prompts and then by completions."""
    whole = shutil.copytree(begun, folder / "grown_twice")
    run(small(prompts={"n": 6}), whole)
    run(small(prompts={"n": 6}, sampling={"group_size": 3}), whole)
    return whole


def contents(path):
    """The bytes of every shard by name."""
    shards = [*path.glob("rollouts/*.parquet"), *path.glob("measurement/shard-*/*")]
    return {str(shard.relative_to(path)): shard.read_bytes() for shard in shards}


def test_a_process_whose_run_another_enlarges_meanwhile_says_so(small, tmp_path, monkeypatch):
    make, plan = sampling_step.make_missing, tmp_path / "rollouts" / "plan.json"

    def made_and_enlarged(*given):
        make(*given)
        planned = read_json(plan)
        write_json(plan, planned | {"rounds": 2 * planned["rounds"]})

    monkeypatch.setattr(sampling_step, "make_missing", made_and_enlarged)
    with pytest.raises(ValueError, match=r"another process has enlarged .* repeat this command with its settings"):
        run(small(), tmp_path)


GROWTHS = {
    "all prompts": {"prompts": {"n": None}},
    "more completions": {"sampling": {"group_size": 4}},
    "both": {"prompts": {"n": 6}, "sampling": {"group_size": 3}},
}


@pytest.mark.parametrize("growth", GROWTHS.values(), ids=GROWTHS)
def test_a_finished_run_grows_and_keeps_what_it_has(small, begun, path, tmp_path, growth):
    before = contents(path)
    larger = small(**growth)
    measured = run(larger, path)
    after = contents(path)
    assert before.items() <= after.items()
    n_prompts = growth.get("prompts", {"n": 4})["n"] or 8
    group_size = larger.sampling.group_size
    rollouts = read_rollouts(path / "rollouts")
    sizes = rollouts.frame.groupby("prompt_id")["sample_id"].agg(lambda numbers: sorted(numbers))
    assert len(sizes) == n_prompts
    assert all(numbers == list(range(group_size)) for numbers in sizes)
    assert len(measured) == len(rollouts) == n_prompts * group_size
    rounds = rounds_of(path / "rollouts")
    assert [(len(made.prompt_ids), made.group_size) for made in rounds] == [(4, 2), (n_prompts, group_size)]
    # Each batch has a seed of its own: nothing that was added repeats what was there.
    drawn = rollouts.frame.groupby("prompt_id")["completion_tokens"].agg(lambda rows: len({tuple(row) for row in rows}))
    assert (drawn > 1).mean() > 0.5
    if n_prompts == 6:  # the same growth from the same start gives the same numbers
        shutil.copytree(begun, tmp_path / "again")
        run(larger, tmp_path / "again")
        assert contents(tmp_path / "again") == after


def test_the_results_of_a_run_that_grew_are_of_all_its_completions(small, path):
    run_experiment(small(sampling={"group_size": 4}), path, progress=False)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["n_sequences"] == 16
    assert manifest["rounds"] == [
        {"n_prompts": 4, "group_size": 2, "n_drawn": 8},
        {"n_prompts": 4, "group_size": 4, "n_drawn": 8},
    ]
    assert manifest["grading"]["completions"] == 16
    assert len(pd.read_csv(path / "tables" / "length_scaling.csv")) == 16
    assert json.loads((path / "alpha.json").read_text())["n"] == 16


@pytest.mark.parametrize("moment", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2)), 3])
def test_an_interrupted_extension_goes_on_and_may_grow_further(small, grown_twice, path, monkeypatch, moment):
    larger, largest = small(prompts={"n": 6}), small(prompts={"n": 6}, sampling={"group_size": 3})
    draw, left = SamplingPlan.draw, [moment]

    def interrupting(plan, *arguments):
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return draw(plan, *arguments)

    monkeypatch.setattr(SamplingPlan, "draw", interrupting)
    if moment < 2:  # two batches are drawn for the larger run, two more for the largest
        with pytest.raises(KeyboardInterrupt):
            run(larger, path)
    else:
        run(larger, path)
        with pytest.raises(KeyboardInterrupt):
            run(largest, path)
    run(largest, path)
    ours, theirs = (read_measurement(each / "measurement") for each in (path, grown_twice))
    pd.testing.assert_frame_equal(ours.rollouts.frame, theirs.rollouts.frame)
    np.testing.assert_array_equal(ours.sketches, theirs.sketches)


def test_a_finished_extension_is_not_sampled_or_measured_again(small, grown_twice, path, monkeypatch):
    def never(*_arguments, **_options):
        raise AssertionError("the model was touched")

    monkeypatch.setattr(SamplingPlan, "make", never)
    monkeypatch.setattr(MeasuringSession, "open", never)
    run(small(prompts={"n": 6}, sampling={"group_size": 3}), grown_twice)
    with pytest.raises(ValueError, match=r"made with prompts\.n=6, not 4: a run can grow but not shrink"):
        run(small(), grown_twice)


def test_problems_that_changed_keep_a_run_from_growing_and_it_stays_whole(small, path):
    before = contents(path)
    larger = small(prompts={"n": 6})
    problems = Path(larger.prompts.source)
    text = problems.read_text()
    problems.write_text(text.replace("ab", "cd"))
    with pytest.raises(ValueError, match="the problems or the tokenizer have changed since .*run was begun"):
        run(larger, path)
    problems.write_text(text.replace('"x"', '"y"'))
    with pytest.raises(ValueError, match=r"the reference answers have changed since .*gradstats regrade"):
        run(larger, path)
    problems.write_text(text)
    assert contents(path) == before
    # The directory is still that of the smaller run.
    run(small(), path)
    run(larger, path)
    assert len(read_measurement(path / "measurement")) == 12


@pytest.mark.parametrize("unfinished", ["rollouts", "measurement"])
def test_other_weights_under_the_same_path_are_refused(policy_folder, tmp_path, unfinished):
    policy = shutil.copytree(policy_folder, tmp_path / "policy")
    experiment = small_experiment(str(policy), tmp_path / "problems.jsonl")
    run(experiment, tmp_path / "run")
    weights = load_file(policy / "model.safetensors")
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, policy / "model.safetensors", metadata={"format": "pt"})
    if unfinished == "measurement":
        shutil.rmtree(tmp_path / "run" / "measurement" / "shard-00001")
    else:
        experiment = small_experiment(str(policy), tmp_path / "problems.jsonl", prompts={"n": 6})
    with pytest.raises(
        ValueError, match="drawn from a policy that differs in its weights .*: restore that policy, or choose"
    ):
        run(experiment, tmp_path / "run")


@pytest.fixture
def hub(monkeypatch):
    """A hub that records what it is asked for; ``hub["missing"]`` are the repositories it cannot give."""
    state = {"missing": {}, "asked": []}

    def problem(name, *_rest):
        return state["missing"].get(name)

    def commit(name, file, repo_type, revision):
        state["asked"].append((name, repo_type, revision))
        return f"commit of {name} at {revision}"

    monkeypatch.setattr("gradstats.sampling.revisions.hub_problem", problem)
    monkeypatch.setattr("gradstats.sampling.revisions.commit_of", commit)
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
