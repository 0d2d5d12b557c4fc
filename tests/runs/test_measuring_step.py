"""The measuring step: shards that are missing are measured, and only those."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import sampled_and_measured, small_experiment

from gradstats.gradients import MeasuringSession
from gradstats.measurement.storage import read_measurement
from gradstats.policy.checkpoint import checkpoint_names
from gradstats.runs.directory import RunDirectory
from gradstats.runs.measuring_step import measure_shards
from gradstats.runs.pipeline import run_experiment
from gradstats.stats import check_on_policy, sampler_gap
from gradstats.system.files import read_json


def test_token_scores_travel_through_a_run_that_stops_half_way(experiment, tmp_path, monkeypatch):
    settings = {"sketch_dim": 64, "token_probes": 4, "token_exact": 0.5, "token_seed": 2}
    sampling = experiment.sampling.model_copy(update={"group_size": 2})
    section = experiment.measurement.model_copy(update=settings)
    resolved = experiment.model_copy(update={"measurement": section, "sampling": sampling})
    whole = run_experiment(resolved, tmp_path / "whole", progress=False)
    assert {scores.n_probes for scores in whole.measured.token_scores()} == {4}
    assert any("W_T has a median relative standard error of" in sentence for sentence in whole.run.remarks)
    assert any("measured with eager attention" in sentence for sentence in whole.run.remarks)

    measure, calls = MeasuringSession.measure, []

    def stops(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(self, *arguments, **options)

    monkeypatch.setattr(MeasuringSession, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(resolved, tmp_path / "halved", progress=False)
    resumed = run_experiment(resolved, tmp_path / "halved", progress=False)
    for name in ("token_projections", "heavy_positions", "heavy_sq_norms", "heavy_sketches"):
        for after, expected in zip(getattr(resumed.measured, name), getattr(whole.measured, name), strict=True):
            np.testing.assert_array_equal(after, expected)


def test_a_measurement_that_does_not_fit_on_the_disk_is_refused_before_it_begins(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**10))
    monkeypatch.setattr(MeasuringSession, "open", lambda *_, **__: pytest.fail("the measurement has begun"))
    with pytest.raises(OSError, match=r"takes up to [\d.]+ MiB, and .*measurement has 0\.0 MiB left: measure with"):
        run_experiment(experiment, tmp_path / "run", progress=False)


def test_only_the_missing_shard_is_measured_again(experiment, finished, tmp_path, monkeypatch):
    shutil.copytree(finished.run.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run", experiment)
    shutil.rmtree(run.measurement / "shard-00001")
    (run.measurement / "complete.json").unlink()
    measure, measured = MeasuringSession.measure, []
    monkeypatch.setattr(
        MeasuringSession, "measure", lambda self, table, *args: (measured.append(table), measure(self, table, *args))[1]
    )
    measure_shards(run, progress=False)
    assert [len(table) for table in measured] == [6]
    assert read_json(run.measurement / "complete.json") == {"n_shards": 4}
    expected = read_measurement(finished.run.measurement)
    np.testing.assert_allclose(read_measurement(run.measurement).sq_norms, expected.sq_norms, rtol=1e-6)


def test_the_missing_shard_has_the_sketches_of_the_others(experiment, finished, tmp_path, monkeypatch):
    shutil.copytree(finished.run.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run", experiment)
    shutil.rmtree(run.measurement / "shard-00001")
    (run.measurement / "complete.json").unlink()
    monkeypatch.setattr("gradstats.gradients.session.default_sketch_version", lambda n_parameters: 2)
    measure_shards(run, progress=False)
    assert read_measurement(run.measurement / "shard-00001").metadata["sketch_version"] == 1
    np.testing.assert_array_equal(read_measurement(run.measurement).sketches, finished.measured.sketches)


def test_rollouts_of_a_declared_behaviour_policy_are_measured_and_others_refused(tmp_path):
    """The digests of the weights differ, which only the declaration permits."""
    changes = {
        "prompts": {"source": "embedded", "n": 3, "settings": {}},
        "sampling": {"max_new_tokens": 8, "reward": "embedded", "batch_size": 6},
    }
    same = small_experiment("embedded", tmp_path / "p.jsonl", **changes)
    earlier = checkpoint_names()[0]
    experiment = same.model_copy(update={"behaviour_policy": {"revision": earlier}})
    measured = sampled_and_measured(experiment, tmp_path / "run")
    drawn_by, scored = measured.rollouts.metadata["policy"], measured.metadata["policy"]
    assert drawn_by["revision"] == earlier != scored["revision"]
    assert drawn_by["digests"]["weights"] != scored["digests"]["weights"]
    assert check_on_policy(measured).verdict().startswith("Not on-policy: the tokens were drawn by another policy, as")
    assert f"drawn by another policy, as recorded (revision={earlier})" in sampler_gap(measured).sentence()
    shutil.rmtree(tmp_path / "run" / "measurement")
    undeclared = RunDirectory(tmp_path / "run", same)
    with pytest.raises(ValueError, match="weights"):
        measure_shards(undeclared, progress=False)
