"""Scoring a run again: no model is touched, old rewards are kept, an interrupted change is finished."""

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import run as command
from killed_runs import contents, die, in_a_fork, kill_at
from small_runs import consonants, sampled_and_measured, small_experiment, vowels

from gradstats.analyses import registry
from gradstats.measurement.measurement import read_measurement
from gradstats.rollouts.table import read_rollouts
from gradstats.runs import pipeline, regrading
from gradstats.runs.pipeline import regrade_run, run_experiment
from gradstats.system.files import file_digest, remove_path, write_json


@pytest.fixture(scope="module")
def begun(policy_folder, tmp_path_factory):
    """A run that was sampled and measured."""
    folder = tmp_path_factory.mktemp("regrading")
    experiment = small_experiment(policy_folder, folder / "problems.jsonl")
    sampled_and_measured(experiment, folder / "run")
    return experiment, folder / "run"


@pytest.fixture
def finished(begun, tmp_path):
    """A copy of it; whatever is done to its problems is undone."""
    experiment, path = begun
    problems = Path(experiment.prompts.source)
    text = problems.read_text()
    yield experiment, shutil.copytree(path, tmp_path / "run")
    problems.write_text(text)


@pytest.fixture
def no_model(monkeypatch):
    def never(*_arguments, **_options):
        raise AssertionError("the model was touched")

    monkeypatch.setattr("gradstats.policy.policy.load_policy", never)


def stored(path):
    return read_rollouts(path / "rollouts").frame, read_measurement(path / "measurement").rollouts.frame


def test_new_rewards_go_into_every_shard_and_every_result(finished, no_model):
    _, path = finished
    before, _ = stored(path)
    old = read_measurement(path / "measurement")
    spec = {"small_runs:consonants": 2.0, "small_runs:vowels": -1.0}
    result = regrade_run(path, spec, progress=False)
    frame, measured = stored(path)
    expected = [2 * consonants(text, None) - vowels(text, None) for text in frame["completion_text"]]
    np.testing.assert_allclose(frame["reward"], expected, rtol=1e-15)
    pd.testing.assert_frame_equal(frame, measured)
    pd.testing.assert_frame_equal(frame.drop(columns="reward"), before.drop(columns="reward"))
    np.testing.assert_array_equal(result.measured.sketches, old.sketches)
    kept = pd.read_parquet(path / "regraded" / "rewards-00000.parquet")
    assert kept["old_reward"].tolist() == before["reward"].tolist()
    assert kept["reward"].tolist() == frame["reward"].tolist()
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["reward"] == spec
    assert manifest["mean_reward"] == pytest.approx(np.mean(expected))
    assert manifest["grading"]["completions"] == 8
    assert "small_runs:consonants | small_runs:vowels" in manifest["grading"]["disagreements"]
    assert manifest["regraded"] == [
        {
            "table": "rewards-00000.parquet",
            "old_reward": "small_runs:vowels",
            "reward": spec,
            "n_changed": int((before["reward"] != frame["reward"]).sum()),
        }
    ]
    assert manifest["timings"].keys() == {"sampling", "measuring", "regrading", "analysis"}
    points = pd.read_csv(path / "tables" / "length_scaling.csv")
    np.testing.assert_allclose(points["reward"], expected)
    assert yaml.safe_load((path / "experiment.yaml").read_text())["sampling"]["reward"] == spec
    assert (path / "report.html").exists()


def test_scoring_back_gives_the_first_results_again(finished, no_model):
    experiment, path = finished
    run_experiment(experiment, path, progress=False)
    names = ("alpha.json", "variance.csv", "tables/length_scaling.csv", "figures/variance.csv")
    before = {name: (path / name).read_bytes() for name in names}
    regrade_run(path, "small_runs:consonants", progress=False)
    assert (path / "variance.csv").read_bytes() != before["variance.csv"]
    regrade_run(path, "small_runs:vowels", progress=False)
    assert {name: (path / name).read_bytes() for name in names} == before
    assert len(regrading.read_regradings(path)) == 2


def test_results_of_the_old_rewards_do_not_stay(finished, no_model, monkeypatch):
    experiment, path = finished
    run_experiment(experiment, path, progress=False)

    def impossible(*_arguments, **_options):
        raise ValueError("rewards that allow no comparison")

    for one in registry.all_analyses():
        if one.in_run is not None and one.name not in ("alpha", "alpha_by_block"):
            monkeypatch.setattr(sys.modules[f"gradstats.analyses.{one.name}"], "ANALYSIS", replace(one, ask=impossible))
    result = regrade_run(path, "exact", progress=False)
    assert any("rewards that allow no comparison" in remark for remark in result.run.remarks)
    assert (path / "alpha.json").exists()
    for name in ("variance.csv", "variance.json", "tables/variance.tex", "tables/group_sizes.csv"):
        assert not (path / name).exists()


@pytest.mark.parametrize("moment", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2, 3, 5)), 4, 6])
def test_an_interrupted_regrading_is_finished_by_what_comes_next(finished, no_model, no_analysis, monkeypatch, moment):
    """Three shards of rollouts and three of the measurement are rewritten."""
    experiment, path = finished
    rewrite, write_plan, left = regrading._rewrite, regrading.write_plan, [moment]

    def interrupting(*arguments):
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        rewrite(*arguments)

    monkeypatch.setattr(regrading, "_rewrite", interrupting)
    if moment == 6:
        monkeypatch.setattr(regrading, "write_plan", interrupting)
    with pytest.raises(KeyboardInterrupt):
        regrade_run(path, "small_runs:consonants", progress=False)
    monkeypatch.setattr(regrading, "_rewrite", rewrite)
    monkeypatch.setattr(regrading, "write_plan", write_plan)
    with pytest.raises(ValueError, match="scoring .*run again was interrupted: finish it with `gradstats regrade"):
        read_measurement(path)
    with pytest.raises(ValueError, match="was interrupted"):
        read_rollouts(path)
    regraded = experiment.sampling.model_copy(update={"reward": "small_runs:consonants"})
    run_experiment(experiment.model_copy(update={"sampling": regraded}), path, progress=False)
    frame, measured = stored(path)
    assert frame["reward"].tolist() == [consonants(text, None) for text in frame["completion_text"]]
    pd.testing.assert_frame_equal(frame, measured)
    assert len(regrading.read_regradings(path)) == 1


#: A write, or the analysis that follows them all.
KILLS = [
    "written:regraded/rewards", "named:regraded/rewards", "named:regraded/pending", "named:rollouts/shard-00001",
    "written:shard-00001/rollouts", "written:regraded/changes", "named:regraded/changes", "analysis",
]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_killed_regrading_that_is_repeated_leaves_what_it_would_have_left(
    finished, no_analysis, monkeypatch, tmp_path
):
    _, path = finished
    copies = [shutil.copytree(path, tmp_path / str(number)) for number in range(len(KILLS))]
    words = ("small_runs:consonants",)
    regrade_run(path, *words, progress=False)
    regrade_run(path, *words, progress=False)
    whole = untimed(path)
    assert len(regrading.read_regradings(path)) == 1
    for kill, copy in zip(KILLS, copies, strict=True):

        def killed(kill=kill, copy=copy):
            if kill == "analysis":
                pipeline.analyse = lambda *_arguments: die()
            else:
                kill_at(*kill.split(":"))
            regrade_run(copy, *words, progress=False)

        assert in_a_fork(killed) == -signal.SIGKILL, kill
        regrade_run(copy, *words, progress=False)
        assert untimed(copy) == whole, kill
    # another change of the same setting is recorded: a reward that was corrected
    monkeypatch.setattr("gradstats.rewards.grading.Grader.grade", ones)
    regrade_run(path, *words, progress=False)
    regrade_run(path, *words, progress=False)
    assert [entry["table"] for entry in regrading.read_regradings(path)] == [
        "rewards-00000.parquet", "rewards-00001.parquet",
    ]  # fmt: skip
    assert stored(path)[0]["reward"].unique().tolist() == [1.0]


def untimed(path):
    """All files but those with times: the analysis, which is left out here, joins the steps' into the manifest."""
    return {name: content for name, content in contents(path).items() if not name.startswith(".call-")}


def ones(self, texts, problems):
    return [1.0] * len(texts), {"completions": len(texts), "rewards": {}, "disagreements": {}}


@pytest.mark.parametrize("name", ["../mine", "/{folder}/mine", "../../mine", "mine", "shard-00003", "./shard-00000"])
def test_a_received_change_writes_to_the_shards_of_its_run_only(finished, tmp_path, name):
    """Each name leads to rollouts that scoring would change, were they a shard."""
    _, path = finished
    name = name.format(folder=tmp_path).replace("//", "/")
    target = path / "rollouts" / f"{name}.parquet"
    if not target.exists():
        shutil.copy(path / "rollouts" / "shard-00000.parquet", target)
    before = target.read_bytes()
    with pytest.raises(ValueError, match=f"pending.json names {name!r}, which is not a shard of the run"):
        pending_change(path, tallies={name: {}})
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["../rewards-00000.parquet", "..", "rollouts.parquet", "", "rewards-00000.parquet\n"])
def test_a_received_change_reads_its_own_table_only(finished, name):
    _, path = finished
    with pytest.raises(ValueError, match=r"pending.json names '.*', which is not a table of rewards"):
        pending_change(path, table=name)


def pending_change(path, **entries):
    """Finish a change of all rewards to 7, in which some entries are replaced."""
    changes = path / "regraded"
    changes.mkdir()
    table = read_rollouts(path / "rollouts").frame[["prompt_id", "sample_id"]].assign(reward=7.0)
    table.to_parquet(changes / "rewards-00000.parquet", index=False)
    change = {
        "table": "rewards-00000.parquet", "tallies": {"shard-00000": {}}, "old_reward": "a", "reward": "b",
        "n_changed": 1, "setting": "exact", "checksum_of_table": file_digest(changes / "rewards-00000.parquet"),
        "answers": [one.answers for one in regrading.rounds_of(path / "rollouts")],
    } | entries  # fmt: skip
    write_json(changes / "pending.json", change)
    regrading.finish_regrading(path)


def test_answers_that_were_mended_count_and_the_run_can_grow_again(finished, no_analysis):
    experiment, path = finished
    problems = Path(experiment.prompts.source)
    regrade_run(path, "exact", progress=False)
    text = read_rollouts(path / "rollouts").frame["completion_text"].iloc[0]
    lines = [json.loads(line) | {"answer": text} for line in problems.read_text().splitlines()]
    problems.write_text("\n".join(map(json.dumps, lines)))
    regrade_run(path, progress=False)
    assert read_rollouts(path / "rollouts").rewards[0] == 1.0
    larger = experiment.model_copy(
        update={
            "prompts": experiment.prompts.model_copy(update={"n": 6}),
            "sampling": experiment.sampling.model_copy(update={"reward": "exact"}),
        }
    )
    assert len(sampled_and_measured(larger, path)) == 12


def test_failures_are_remarked_on_and_counted(finished, no_model):
    _, path = finished
    result = regrade_run(path, ["small_runs:picky", "small_runs:vowels=0"], progress=False)
    manifest = json.loads((path / "manifest.json").read_text())
    failures = manifest["grading"]["rewards"]["small_runs:picky"]["failures"]
    texts = read_rollouts(path / "rollouts").frame["completion_text"]
    assert failures == sum(any(letter.isdigit() for letter in text) for text in texts) > 0
    assert any("could not be scored" in remark for remark in result.run.remarks)
    assert any("ValueError: a digit" in remark for remark in manifest["remarks"])
    assert manifest["remarks_of_steps"]["regrading"]
    regrade_run(path, "small_runs:vowels", progress=False)
    manifest = json.loads((path / "manifest.json").read_text())
    assert not any("could not be scored" in remark for remark in manifest["remarks"])
    assert "regrading" not in manifest["remarks_of_steps"]


def test_what_cannot_be_scored_again_is_reported_and_nothing_changes(finished, no_analysis, tmp_path):
    experiment, path = finished
    before, _ = stored(path)
    problems = Path(experiment.prompts.source)
    text = problems.read_text()
    with pytest.raises(FileNotFoundError, match=r"is not a run directory: it holds no experiment\.yaml"):
        regrade_run(tmp_path / "absent")
    with pytest.raises(ValueError, match="reward 'vowel' is not known"):
        regrade_run(path, "vowel", progress=False)
    problems.write_text(text.replace("ab ab", "cd cd"))
    with pytest.raises(ValueError, match="the problems have a different text for the run's prompt"):
        regrade_run(path, "exact", progress=False)
    problems.write_text(text.replace("k", "q").replace("qey", "key"))
    with pytest.raises(ValueError, match="the problems no longer contain the run's prompt 'k"):
        regrade_run(path, "exact", progress=False)
    pd.testing.assert_frame_equal(stored(path)[0], before)
    assert not (path / "regraded").exists()


def test_the_command_says_what_changed(finished, no_model, monkeypatch, capsys):
    _, path = finished
    words = ("regrade", path, "--reward", "small_runs:vowels=0.5", "exact=0.5", "--no-progress")
    code, out, _ = command(monkeypatch, capsys, *words)
    assert code == 0
    assert "scored with {'small_runs:vowels': 0.5, 'exact': 0.5} instead of small_runs:vowels" in " ".join(out.split())
    assert str(path / "regraded" / "rewards-00000.parquet") in out
    assert "· reward 0." in out
    code, out, err = command(monkeypatch, capsys, "regrade", path.parent)
    assert code == 1
    assert "is not a run directory" in err


def test_a_run_without_a_measurement_is_scored_all_the_same(finished, no_analysis):
    experiment, path = finished
    (path / "rollouts" / "complete.json").unlink()
    sorted(path.glob("rollouts/*.parquet"))[-1].unlink()
    for shard in path.glob("measurement/shard-*"):
        remove_path(shard)
    (path / "measurement" / "complete.json").unlink()
    assert regrade_run(path, "small_runs:consonants", progress=False) is None
    regraded = experiment.sampling.model_copy(update={"reward": "small_runs:consonants"})
    run_experiment(experiment.model_copy(update={"sampling": regraded}), path, progress=False)
    frame, _ = stored(path)
    assert frame["reward"].tolist() == [consonants(text, None) for text in frame["completion_text"]]
