"""A run directory: which folders and settings it accepts, and what it records."""

import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from gradstats.policy.memory import planned_memory_gib
from gradstats.runs.directory import ANALYSIS, CALLS, RunDirectory
from gradstats.runs.pipeline import regrade_run, run_experiment
from gradstats.system.files import write_json


def test_leftovers_of_a_killed_writer_are_removed_not_read(experiment, finished, tmp_path):
    run = RunDirectory.open(tmp_path / "run", experiment)
    (run.rollouts / ".shard-00000.parquet.1.partial").write_bytes(b"PAR1")
    (run.measurement / ".shard-00000.1.partial").mkdir()
    for folder in ("tables", "figures"):
        (run.path / folder).mkdir()
        (run.path / folder / f".{folder}.1.partial").write_bytes(b"half")
    run_experiment(experiment, tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert (run.path / "variance.csv").read_bytes() == (finished.run.path / "variance.csv").read_bytes()


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("sampling", "group_size", 2, r"sampling\.group_size=4, not 2: a run can grow but not shrink"),
        ("sampling", "seed", 1, r"sampling\.seed=0, not 1: choose another directory"),
        ("sampling", "reward", "exact", r"sampling\.reward=.* not 'exact': score its completions again with .*regrade"),
        ("prompts", "n", 3, r"prompts\.n=None, not 3: a run can grow but not shrink"),
        ("policy", "revision", "v2", r"policy\.revision=None, not 'v2': choose another directory"),
    ],
)
def test_other_settings_are_refused_by_name_and_lose_nothing(experiment, finished, section, name, value, message):
    other = experiment.model_copy(update={section: getattr(experiment, section).model_copy(update={name: value})})
    with pytest.raises(ValueError, match=message):
        run_experiment(other, finished.run.path, progress=False)
    assert yaml.safe_load((finished.run.path / "experiment.yaml").read_text()) == experiment.model_dump(
        exclude={"execution"}
    )


@pytest.mark.parametrize("interrupted", ["sampling", "measuring"])
def test_how_many_sequences_are_measured_together_may_change(experiment, finished, no_analysis, tmp_path, interrupted):
    """As after memory ran out: what was drawn is kept, and the numbers agree up to rounding."""
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    shutil.rmtree(path / "measurement" / "shard-00000")
    (path / "measurement" / "complete.json").unlink()
    if interrupted == "sampling":
        (path / "rollouts" / "shard-00000.parquet").unlink()
        (path / "rollouts" / "complete.json").unlink()
    drawn = {file.name: file.stat().st_mtime_ns for file in (path / "rollouts").glob("*.parquet")}
    assert drawn
    fewer = experiment.measurement.model_copy(update={"token_budget": 40, "memory_gib": 0.01})
    again = run_experiment(experiment.model_copy(update={"measurement": fewer}), path, progress=False)
    assert drawn.items() <= {file.name: file.stat().st_mtime_ns for file in (path / "rollouts").iterdir()}.items()
    assert yaml.safe_load((path / "experiment.yaml").read_text())["measurement"]["token_budget"] == 40
    pd.testing.assert_frame_equal(again.measured.rollouts.frame, finished.measured.rollouts.frame)
    np.testing.assert_allclose(again.measured.sq_norms, finished.measured.sq_norms, rtol=1e-6)


def test_settings_may_be_corrected_before_anything_was_sampled(experiment, no_analysis, tmp_path):
    wrong = experiment.model_copy(update={"policy": experiment.policy.model_copy(update={"name": "./absent"})})
    with pytest.raises(FileNotFoundError, match="the model folder ./absent does not exist"):
        run_experiment(wrong, tmp_path / "run", progress=False)
    assert len(run_experiment(experiment, tmp_path / "run", progress=False).measured) == 24


def test_a_folder_of_other_things_is_not_taken_over(experiment, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="exists and is not a run directory that gradstats wrote"):
        run_experiment(experiment, tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def taken_over(path, experiment):
    """A run as a later call finds it, before it analyses."""
    run = RunDirectory.open(path, experiment)
    run.take_over()
    return run


def test_a_step_adds_its_time_and_keeps_its_warnings_even_where_it_fails(experiment, tmp_path, monkeypatch):
    run = RunDirectory.open(tmp_path / "run", experiment)
    clock = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr("gradstats.runs.directory.time.monotonic", lambda: next(clock))
    with run.step("sampling"):
        warnings.warn("few prompts", UserWarning, stacklevel=1)
        warnings.warn("for developers", DeprecationWarning, stacklevel=1)
    with pytest.raises(KeyboardInterrupt), run.step("sampling"):
        raise KeyboardInterrupt
    assert run.timings == {"sampling": 3.5}
    assert run.remarks == ["few prompts"]
    # What was killed before the manifest was written is counted by later calls, once.
    for _ in range(2):
        assert taken_over(run.path, experiment).timings == {"sampling": 3.5}
    run.call.write_text("{")
    assert taken_over(run.path, experiment).timings == {}


def test_the_manifest_counts_steps_of_an_interrupted_call_once(experiment, tmp_path, monkeypatch):
    def killed(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradstats.runs.pipeline.measure_shards", killed)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    drawn = taken_over(tmp_path / "run", experiment).timings["sampling"]
    assert drawn > 0
    for _ in range(2):
        result = run_experiment(experiment, tmp_path / "run", progress=False)
        assert result.run.read_manifest()["timings"]["sampling"] == drawn
    assert not list((tmp_path / "run").glob(CALLS))


def test_remarks_of_steps_are_kept_for_later_calls_but_not_those_of_the_analysis(experiment, tmp_path):
    """Settings of sampling are looked at only where something is drawn; the analysis is repeated by every call."""
    run = RunDirectory.open(tmp_path / "run", experiment)
    for step, said in (("sampling", "not followed"), (ANALYSIS, "few prompts"), ("sampling", "not followed")):
        with run.step(step):
            warnings.warn(said, UserWarning, stacklevel=1)
    assert run.remarks == ["not followed", "few prompts"]
    assert run.remarks_of_steps == {"sampling": ["not followed"]}
    recorded = {"remarks_of_steps": run.remarks_of_steps, "timings": {"sampling": 2.0}, "rounds": []}
    write_json(run.path / "manifest.json", recorded)
    run.call.unlink()
    (run.rollouts / "shard-00000.parquet").write_bytes(b"")
    later = taken_over(run.path, experiment)
    assert (later.remarks, later.timings) == (["not followed"], {"sampling": 2.0})
    # As after an extension that was interrupted: more is planned than the manifest knows.
    write_json(run.path / "manifest.json", {"remarks_of_steps": run.remarks_of_steps, "rounds": [{"n_drawn": 1}]})
    assert taken_over(run.path, experiment).remarks == []


def test_a_manifest_that_has_not_been_written_is_empty(experiment, finished, tmp_path):
    run = RunDirectory.open(tmp_path / "run", experiment)
    assert run.read_manifest() == {}
    assert taken_over(finished.run.path, experiment).timings == finished.run.read_manifest()["timings"]


@pytest.mark.parametrize("call", ["open", "regrade"])
def test_a_wrong_setting_of_an_earlier_run_is_reported_with_its_file(experiment, tmp_path, call):
    run = RunDirectory.open(tmp_path / "run", experiment)
    (run.rollouts / "shard-00000.parquet").touch()
    path = run.path / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment.model_dump() | {"prompts": {"n": 0}}))
    message = f"the experiment file {path} has wrong settings: prompts.source is missing"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        RunDirectory.open(run.path, experiment) if call == "open" else regrade_run(run.path, trust=True, progress=False)


def test_processes_of_a_run_that_use_one_gpu_plan_with_their_share_of_it(experiment, tmp_path, monkeypatch):
    """Also before the others load anything; those of other GPUs, and those that have ended, take nothing."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30, 80 * 2**30))
    runs = [RunDirectory.open(tmp_path, experiment, alone=not number) for number in range(4)]
    write_json(tmp_path / ".call-ended.json", {"card": "a", "pid": ended.pid})
    planned = []
    for run, card in zip(runs, "aaba", strict=True):
        monkeypatch.setattr("gradstats.policy.memory.card_of", lambda device, card=card: card)
        with run.loaded(lambda: planned_memory_gib(torch.device("cuda"))) as gib:
            planned.append(gib)
    assert planned == [80, 40, 80, 20]
