"""Several processes that make one run, in a shared directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import parts_at_once
import pytest
from killed_runs import contents, in_new_process

from gradstats.runs import directory as parts
from gradstats.runs.directory import RunPart, part_records
from gradstats.runs.pipeline import run_experiment, run_part
from gradstats.system.lock import part_lock, part_writer


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
