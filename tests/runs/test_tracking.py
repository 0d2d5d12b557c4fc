"""Following a run in a tracker: what is logged, on which run of the tracker, and what happens when it fails."""

import os
import shutil
import sqlite3
import subprocess
import sys
import types
import warnings

import numpy as np
import pandas as pd
import pytest

from gradstats.report.result_values import completion_values, result_values
from gradstats.runs import tracking
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.sweep import run_sweep
from gradstats.system.files import read_json


class FakeTracker(types.ModuleType):
    """Keeps what it is given; fails from a call of ``log`` on."""

    def __init__(self, fails_at: int | None = None, fails_to_start: bool = False) -> None:
        super().__init__("trackio")
        self.started, self.logged, self.finished = [], [], 0
        self.fails_at, self.fails_to_start = fails_at, fails_to_start

    def init(self, **settings):
        if self.fails_to_start:
            raise OSError("the disk is full\nand more")
        self.started.append(settings)
        print("a line of the tracker")
        return self

    def log(self, values):
        if self.fails_at is not None and len(self.logged) >= self.fails_at:
            raise ConnectionError("the server is gone")
        self.logged.append(values)

    def finish(self):
        self.finished += 1

    def Image(self, path):
        return ("image", path)

    def Table(self, dataframe):
        return dataframe

    @property
    def values(self):
        return {key: value for logged in self.logged for key, value in logged.items()}


@pytest.fixture
def installed_tracker(monkeypatch):
    def install(**settings):
        module = FakeTracker(**settings)
        monkeypatch.setitem(sys.modules, "trackio", module)
        monkeypatch.setattr(tracking, "installed", lambda package: "1.0")
        return module

    return install


@pytest.fixture(scope="module")
def tracked(experiment):
    return experiment.model_copy(update={"tracking": "trackio"})


def run(experiment, path):
    return run_experiment(experiment, path, progress=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestLogged:
    def test_settings_progress_timings_and_results(self, drawing, finished, installed_tracker, tmp_path, capsys):
        module = installed_tracker()
        tracked = drawing.model_copy(update={"tracking": "trackio"})
        result = run(tracked, tmp_path / "run")
        assert module.started[0]["config"] == tracked.model_dump()
        assert module.started[0]["project"] == "gradstats"
        assert module.finished == 1
        shards = [logged for logged in module.logged if "sampling/mean_reward" in logged]
        assert len(shards) == 4  # batches of six completions
        rewards = result.measured.rollouts.rewards
        np.testing.assert_allclose(np.mean([shard["sampling/mean_reward"] for shard in shards]), rewards.mean())
        assert all(shard["sampling/tokens_per_second"] > 0 for shard in shards)
        assert sum("measuring/tokens_per_second" in logged for logged in module.logged) == 4
        for step in ("sampling", "measuring", "analysis"):
            assert module.values[f"{step}/seconds"] == result.run.timings[step]
        assert module.values["results/alpha"] == result.fit.alpha
        frame = result.comparison.to_frame()
        assert module.values["results/reinforce/ratio"] == frame.set_index("estimator").loc["reinforce", "ratio"]
        pd.testing.assert_frame_equal(module.values["results/variance"], frame)
        drawn = {key for key in module.values if key.startswith("figures/")}
        assert {"figures/length_scaling", "figures/variance"} <= drawn
        captured = capsys.readouterr()
        assert "a line of the tracker" not in captured.out
        assert "a line of the tracker" in captured.err
        # The numbers are those of a run without a tracker.
        pd.testing.assert_frame_equal(frame, finished.comparison.to_frame())

    def test_a_further_call_adds_to_the_same_run(
        self, tracked, finished, no_analysis, installed_tracker, tmp_path, monkeypatch
    ):
        module = installed_tracker()
        for name in ("run", "other"):
            shutil.copytree(finished.run.path, tmp_path / name)
        for _ in range(2):
            run(tracked, tmp_path / "run")
        assert module.started[0]["name"] == module.started[1]["name"]
        assert module.started[1]["resume"] == "allow"
        assert read_json(tmp_path / "run" / "tracking.json")["id"] in module.started[0]["name"]
        run(tracked, tmp_path / "other")
        assert module.started[2]["name"] != module.started[0]["name"]
        monkeypatch.setenv("TRACKIO_PROJECT", "elsewhere")
        run(tracked, tmp_path / "run")
        assert module.started[3]["project"] == "elsewhere"
        assert module.started[3]["name"] != module.started[0]["name"]

    def test_it_may_be_switched_on_for_a_finished_run(self, finished, tracked, installed_tracker, tmp_path):
        shutil.copytree(finished.run.path, tmp_path / "run")
        module = installed_tracker()
        run(tracked, tmp_path / "run")
        assert "results/alpha" in module.values
        assert not any(key.startswith("sampling/") for key in module.values)


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestFailures:
    @pytest.mark.parametrize("moment", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (6, 13))])
    def test_a_tracker_that_fails_never_stops_the_run(self, tracked, finished, installed_tracker, tmp_path, moment):
        module = installed_tracker(fails_at=moment)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = run(tracked, tmp_path / "run")
        said = [str(one.message) for one in caught] + result.run.remarks
        assert sum("trackio failed (the server is gone): the run continues" in one for one in said) == 1
        assert len(module.logged) == moment
        pd.testing.assert_frame_equal(result.comparison.to_frame(), finished.comparison.to_frame())

    def test_a_tracker_that_does_not_start_is_refused_before_anything_is_sampled(
        self, tracked, installed_tracker, tmp_path
    ):
        installed_tracker(fails_to_start=True)
        with pytest.raises(RuntimeError, match=r"trackio could not be started \(the disk is full\): .*tracking=none"):
            run(tracked, tmp_path / "run")
        assert not list((tmp_path / "run" / "rollouts").iterdir())

    def test_a_missing_library_is_refused_before_anything_is_written(self, tracked, tmp_path, monkeypatch):
        monkeypatch.setattr(tracking, "installed", lambda package: None)
        with pytest.raises(ImportError, match=r"not installed: pip install 'gradstats\[tracking\]', or run with --set"):
            run(tracked, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_sweep_asks_before_its_first_cell(self, tracked, tmp_path, monkeypatch):
        monkeypatch.setattr(tracking, "installed", lambda package: None)
        file = tmp_path / "sizes.yaml"
        file.write_text(tracked.to_yaml() + "vary: {measurement.sketch_dim: [64, 128]}\n")
        with pytest.raises(ImportError, match="tracking is trackio"):
            run_sweep(file, out=tmp_path / "sweep", progress=False)
        assert not (tmp_path / "sweep").exists()


def test_a_run_without_a_tracker_logs_nowhere(experiment, tmp_path):
    directory = RunDirectory(tmp_path, experiment)
    with directory.step("sampling"):
        pass
    assert not (tmp_path / "tracking.json").exists()


def test_results_without_a_fit_are_those_of_the_completions(finished):
    rollouts = finished.measured.rollouts
    assert result_values(rollouts, None, None) == completion_values(rollouts)


PROGRAM = """
import sys, warnings
import yaml
from gradstats.config.experiment import Experiment
from gradstats.runs.pipeline import run_experiment
warnings.simplefilter("ignore")
experiment = Experiment(**yaml.safe_load(open(sys.argv[1]))).model_copy(update={"tracking": sys.argv[3]})
run_experiment(experiment, __import__("pathlib").Path(sys.argv[2]), progress=False)
"""


def tracked_for_real(experiment, tracker, folder, **variables):
    """Run in a process of its own, since trackers leave threads behind; returns what it printed."""
    file = folder / "tiny.yaml"
    file.write_text(experiment.to_yaml())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file), str(folder / "run"), tracker],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    return done.stdout


def test_trackio_offline(experiment, tmp_path):
    pytest.importorskip("trackio", exc_type=ImportError)
    printed = tracked_for_real(experiment, "trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"), HF_HUB_OFFLINE="1")
    assert printed == ""
    with sqlite3.connect(tmp_path / "kept" / "gradstats.db") as database:
        rows = [metrics for (metrics,) in database.execute("select metrics from metrics")]
    database.close()
    text = " ".join(map(str, rows))
    for key in ("sampling/tokens_per_second", "measuring/seconds", "results/alpha", "results/variance", "figures/"):
        assert key in text, key
    assert list((tmp_path / "kept").rglob("*.png"))


def test_wandb_offline(experiment, tmp_path):
    pytest.importorskip("wandb", exc_type=ImportError)
    tracked_for_real(experiment, "wandb", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    for key in (b"sampling/tokens_per_second", b"measuring/seconds", b"results/alpha", b"group_size"):
        assert key in content, key
    assert read_json(tmp_path / "run" / "tracking.json")["id"] in written.name
    assert list(written.parent.rglob("*.table.json"))
    assert list(written.parent.rglob("*.png"))
