"""A run directory: which folders and settings it accepts, and what it records."""

import os
import re
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import parts_at_once
import pytest
import yaml
from killed_runs import contents, in_new_process

from gradstats.config.experiment import Experiment
from gradstats.runs import directory as parts
from gradstats.runs.directory import ANALYSIS, RunDirectory, RunPart, part_records
from gradstats.runs.pipeline import _see_one_gpu as see_one_gpu
from gradstats.runs.pipeline import regrade_run, run_experiment, run_part
from gradstats.system.files import write_json
from gradstats.system.lock import part_lock, part_writer


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
        assert RunDirectory.open(run.path, experiment).timings == {"sampling": 3.5}
    (run.path / ".steps.json").write_text("{")
    assert RunDirectory.open(run.path, experiment).timings == {}


def test_the_manifest_counts_steps_of_an_interrupted_call_once(experiment, tmp_path, monkeypatch):
    def killed(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradstats.runs.pipeline.measure_shards", killed)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    drawn = RunDirectory.open(tmp_path / "run", experiment).timings["sampling"]
    assert drawn > 0
    for _ in range(2):
        result = run_experiment(experiment, tmp_path / "run", progress=False)
        assert result.run.read_manifest()["timings"]["sampling"] == drawn
    assert not (tmp_path / "run" / ".steps.json").exists()


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
    (run.path / ".steps.json").unlink()
    (run.rollouts / "shard-00000.parquet").write_bytes(b"")
    later = RunDirectory.open(run.path, experiment)
    assert (later.remarks, later.timings) == (["not followed"], {"sampling": 2.0})
    larger = experiment.sampling.model_copy(update={"group_size": 8})
    grown = RunDirectory.open(run.path, experiment.model_copy(update={"sampling": larger}))
    assert (grown.remarks, grown.timings) == ([], {"sampling": 2.0})
    # As after an extension that was interrupted: more is planned than the manifest knows.
    write_json(run.path / "manifest.json", {"remarks_of_steps": run.remarks_of_steps, "rounds": [{"n_drawn": 1}]})
    assert RunDirectory.open(run.path, experiment).remarks == []


def test_a_manifest_that_has_not_been_written_is_empty(experiment, finished, tmp_path):
    run = RunDirectory.open(tmp_path / "run", experiment)
    assert run.read_manifest() == {}
    assert RunDirectory.open(finished.run.path, experiment).timings == finished.run.read_manifest()["timings"]


@pytest.mark.parametrize("call", ["open", "regrade"])
def test_a_wrong_setting_of_an_earlier_run_is_reported_with_its_file(experiment, tmp_path, call):
    run = RunDirectory.open(tmp_path / "run", experiment)
    (run.rollouts / "shard-00000.parquet").touch()
    path = run.path / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment.model_dump() | {"prompts": {"n": 0}}))
    message = f"the experiment file {path} has wrong settings: prompts.source is missing"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        RunDirectory.open(run.path, experiment) if call == "open" else regrade_run(run.path, trust=True, progress=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_parts_at_once_of_which_one_is_killed_leave_the_files_of_one_process(experiment, finished, tmp_path):
    killed, refused, *ended = in_new_process(Path(parts_at_once.__file__), experiment, tmp_path)
    assert (killed, ended) == (str(-signal.SIGKILL), ["0", "0"])
    assert "a part of" in refused
    assert "is being made (process" in refused
    path = tmp_path / "runs"
    result = run_experiment(experiment, path, progress=False)
    assert contents(path) == contents(finished.run.path)
    assert not list(path.glob(".*"))
    manifest = result.run.read_manifest()
    assert [record["part"] for record in manifest["parts"]] == ["1/2", "2/2"]
    assert manifest["timings"]["measuring"] > 0
    assert manifest["remarks"] == finished.run.read_manifest()["remarks"]


def test_a_part_waits_only_for_parts_that_run_or_may_start(tmp_path, monkeypatch):
    now, said, left = [0.0], [], [[1, 3], [1, 3], [3], []]
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(parts.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 200))
    part = RunPart(1, 2)
    with part_writer(tmp_path, 2, 2):
        assert part.wait_for(tmp_path, lambda: left.pop(0), said.append)
        assert now[0] == 600  # longer than it would wait for one that does not run
    assert said == ["waiting for 2 shards of the parts 2/2"]
    assert not part_lock(tmp_path, 2, 2).exists()
    assert not part.wait_for(tmp_path, lambda: [1], said.append)
    assert part.wait_for(tmp_path, list, said.append)


def test_a_part_that_is_alone_draws_its_shards_and_says_what_is_missing(experiment, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_GRACE", -1.0)
    monkeypatch.setattr(parts, "_BETWEEN_LOOKS", 0.0)
    path = tmp_path / "run"
    result = run_part(experiment, path, RunPart(2, 3), progress=False)
    assert (result.n_shards, result.n_measured, result.n_awaited) == (1, 0, 3)
    drawn = sorted(path.glob("rollouts/*.parquet"))
    assert [shard.name for shard in drawn] == ["shard-00001.parquet"]
    assert drawn[0].read_bytes() == (finished.run.rollouts / drawn[0].name).read_bytes()
    assert not (path / "rollouts" / "complete.json").exists()
    (record,) = part_records(path).values()
    assert record["part"] == "2/3"
    assert record["timings"]["sampling"] > 0
    assert any("it is not followed" in remark for remark in record["remarks"])
    other = experiment.model_copy(update={"sampling": experiment.sampling.model_copy(update={"seed": 7})})
    with pytest.raises(ValueError, match="was made with sampling.seed=0, not 7"):
        run_part(other, path, RunPart(1, 3), progress=False)


@pytest.mark.parametrize(
    ("n_gpus", "shown", "settings", "seen"),
    [
        (4, None, {}, "2"),
        (2, "5,7", {}, "5"),
        (1, "5", {}, "5"),
        (4, None, {"policy": {"name": "embedded", "device": "cpu"}}, None),
        (4, "0,1,2,3", {"execution": {"ranks_per_worker": 4}}, "0,1,2,3"),
    ],
)
def test_parts_that_see_the_same_gpus_take_one_each(monkeypatch, capsys, n_gpus, shown, settings, seen):
    monkeypatch.setattr("torch.cuda.device_count", lambda: n_gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown or "")
    sections = {"policy": {"name": "embedded"}, "prompts": {"source": "embedded"}} | settings
    see_one_gpu(Experiment(name="x", **sections), RunPart(3, 8))
    assert (os.environ["CUDA_VISIBLE_DEVICES"] or None) == seen
    said = f"part 3/8 computes on GPU {seen}, of {n_gpus} that it could see"
    assert (said in capsys.readouterr().err) == (seen != shown)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "1/2/3", "-1/2"])
def test_a_part_is_written_as_k_of_n(text):
    with pytest.raises(ValueError, match="write k/n, for the k-th of n parts, as in 2/8"):
        RunPart.of(text)


def test_parts_share_out_every_shard_once():
    shares = [RunPart(number, 3).own(range(8)) for number in (1, 2, 3)]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert str(RunPart.of("2/8")) == "2/8"


def test_calls_of_the_same_part_add_up(tmp_path):
    part = RunPart(1, 2)
    part.write_record(tmp_path, {"sampling": 1.5}, ["a"], {"executor": "local"})
    part.write_record(tmp_path, {"sampling": 1.0, "measuring": 2.0}, ["b", "a"], {"executor": "local"})
    (record,) = part_records(tmp_path).values()
    assert record["timings"] == {"sampling": 2.5, "measuring": 2.0}
    assert record["remarks"] == ["a", "b"]
    part.write_record(tmp_path, {}, [], None)  # a call that found everything made
    (record,) = part_records(tmp_path).values()
    assert record["execution"] == {"executor": "local"}
