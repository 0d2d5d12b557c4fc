"""A run directory of version 0.1 is read, analysed and resumed; neither its policy nor its prompts are needed."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats as gs
from gradstats.config.experiment import load_experiment
from gradstats.gradients import MeasuringSession
from gradstats.measurement.measurement import read_measurement
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.pipeline import run_experiment
from gradstats.system.outputs import is_marked

pytestmark = pytest.mark.filterwarnings("ignore")  # four prompts are too few, and every step says so

#: Written by ``gradstats run embedded --set prompts.n=4 sampling.group_size=4 sampling.max_new_tokens=48
#: sampling.batch_size=8 measurement.sketch_dim=16 measurement.token_probes=2 measurement.token_exact=2``.
SAVED = Path(__file__).parent / "data" / "run_of_0_1"


@pytest.fixture
def path(tmp_path, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("a finished run needs neither its policy nor its prompts")

    monkeypatch.setattr("gradstats.policy.policy.load_policy", never)
    monkeypatch.setattr("gradstats.prompts.load.load_prompts", never)
    return Path(shutil.copytree(SAVED, tmp_path / "run"))


def shards_of(path):
    """Every file that sampling and measuring wrote."""
    files = [file for step in ("rollouts", "measurement") for file in (path / step).rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_its_measurement_is_read(path):
    measured = gs.read_measurement(path / "measurement")
    assert len(measured) == len(read_measurement(path)) == len(read_rollouts(path)) == 16
    assert measured.sketches.shape == (16, 16)
    assert measured.n_token_probes == 2
    assert [len(rows) for rows in measured.heavy_positions] == [2] * 16
    points = pd.read_csv(path / "tables" / "length_scaling.csv")
    np.testing.assert_allclose(measured.sq_norms, points["sq_norm"])
    np.testing.assert_array_equal(measured.lengths, points["length"])
    np.testing.assert_array_equal(measured.rollouts.truncated, points["truncated"])
    assert measured.metadata["engine"] == "vmap"


def test_its_alpha_is_the_same(path, monkeypatch, capsys):
    saved = json.loads((path / "alpha.json").read_text())
    code, out, _ = run(monkeypatch, capsys, "alpha", path, "--json")
    summary = json.loads(out)
    assert code == 0
    for name in ("alpha", "alpha_low", "alpha_high", "n_prompts"):
        assert summary[name] == pytest.approx(saved[name], rel=1e-6), name


def test_its_variance_is_the_same(path, monkeypatch, capsys):
    saved = pd.read_csv(path / "variance.csv")
    code, out, _ = run(monkeypatch, capsys, "variance", path, "--estimators", "rloo", "reinforce")
    assert code == 0
    assert "rloo" in out
    frame = gs.compare(read_measurement(path), saved["estimator"].tolist()).to_frame()
    for column in ("group_size", "trace_cov", "ratio", "matched_ratio"):
        # What version 0.1 left out may be known now.
        known = saved[column].notna()
        assert known.any()
        np.testing.assert_allclose(frame[column][known], saved[column][known], rtol=1e-5, atol=1e-9, err_msg=column)


@pytest.mark.parametrize("command", [pytest.param("export", marks=pytest.mark.slow), "report"])
def test_its_figures_and_its_page_are_drawn_from_saved_numbers(path, monkeypatch, capsys, command):
    for step in ("rollouts", "measurement"):
        shutil.rmtree(path / step)
    code, _, err = run(monkeypatch, capsys, command, path)
    assert (code, err) == (0, "")
    names = ["report.html"] if command == "report" else ["figures/length_scaling.pdf", "figures/variance.pdf"]
    for name in names:
        assert (path / name).stat().st_size > 0, name


def test_the_same_experiment_samples_and_measures_nothing(path):
    before = shards_of(path)
    (path / "report.html").write_text("<p>a page of version 0.1, which marked none")
    saved = {name: pd.read_csv(path / "tables" / f"{name}.csv") for name in ("length_scaling", "length_bins")}
    result = run_experiment(load_experiment(path / "experiment.yaml", ["figures.formats=[]"]), path, progress=False)
    assert shards_of(path) == before
    assert len(result.measured) == 16
    assert is_marked(path / "report.html")
    for name, frame in saved.items():
        # The reference comes first; version 0.1 wrote no bins of other estimators.
        again = pd.read_csv(path / "tables" / f"{name}.csv").iloc[: len(frame)]
        # Sets of what divides by the signal are Fieller's since, and their value is left out where they are unbounded;
        # what completions of some lengths contribute is not a multiple of the gradient and has no relative noise.
        changed = ("cosine", "bias_share", "matched_ratio")
        columns = [column for column in frame if not column.startswith(changed)]
        pd.testing.assert_frame_equal(again[columns], frame[columns], rtol=1e-5, obj=name)


def test_a_shard_that_is_missing_is_all_that_would_be_measured(path, monkeypatch):
    """Shards are found under the names that version 0.1 gave them."""
    shutil.rmtree(path / "measurement" / "shard-00001")
    (path / "measurement" / "complete.json").unlink()
    asked = []

    def opened(_policy, rollouts, _section, **_options):
        asked.append(len(rollouts))
        return object.__new__(MeasuringSession)

    def measured(_session, rollouts, *_others):
        asked.append(rollouts.sample_id.tolist())
        return gs.read_measurement(SAVED / "measurement" / "shard-00001")

    monkeypatch.setattr("gradstats.runs.measuring_step.experiment_policy", lambda *_: SimpleNamespace(digests={}))
    monkeypatch.setattr(MeasuringSession, "open", opened)
    monkeypatch.setattr(MeasuringSession, "measure", measured)
    run_experiment(load_experiment(path / "experiment.yaml", ["figures.formats=[]"]), path, progress=False)
    # The session is opened with the shortest, the median and the longest completion, which it checks.
    assert asked == [3, gs.read_rollouts(SAVED / "rollouts" / "shard-00001.parquet").sample_id.tolist()]
    assert sorted(folder.name for folder in (path / "measurement").iterdir()) == [
        "complete.json",
        "shard-00000",
        "shard-00001",
    ]
