"""A sweep from end to end: shared completions, resuming, a cell that fails, folders that are refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from small_runs import leave_out_pictures

import gradstats as gs
from gradstats.config.sweep import load_sweep
from gradstats.runs import sweep
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.sweep import check_cells, draws_alike, measured_by
from gradstats.sampling.plan import SamplingPlan
from gradstats.system.files import read_json, remove_path, write_json
from gradstats.system.lock import together


def write_sweep(experiment, folder):
    """Write a file of two sampling temperatures, each measured with two sketches."""
    data = experiment.model_dump() | {"name": "tiny sweep"}
    data["vary"] = {"sampling.temperature": [0.7, 1.0], "measurement.sketch_dim": [64, 256]}
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.fixture
def file(experiment, tmp_path):
    return write_sweep(experiment, tmp_path)


def drawn(monkeypatch):
    """The batches that are drawn from now on."""
    real, calls = SamplingPlan.draw, []

    def counted(self, *given, **options):
        calls.append(self.policy)
        return real(self, *given, **options)

    monkeypatch.setattr(SamplingPlan, "draw", counted)
    return calls


@pytest.fixture(scope="module")
def made(experiment, tmp_path_factory):
    """The folder of the finished sweep, its result, and the batches that it drew."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patched:
        leave_out_pictures(patched)
        batches = drawn(patched)
        result = gs.run_sweep(write_sweep(experiment, folder), out=folder / "out", progress=False)
    return folder / "out", result, batches


@pytest.fixture
def out(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made[0], tmp_path / "out")


def test_cells_that_draw_alike_share_completions(made, file, out, no_analysis, monkeypatch):
    folder, result, batches = made
    assert len(batches) == 2 * 4  # two temperatures, four batches each
    cells = [folder / name for name in result.settings]
    shards = [cell / "rollouts" / "shard-00000.parquet" for cell in cells]
    assert os.path.samefile(shards[0], shards[1])
    assert shards[0].read_bytes() != shards[2].read_bytes()
    dims = [gs.read_measurement(cell / "measurement").sketches.shape[1] for cell in cells]
    assert dims == [64, 256, 64, 256]
    frame = result.to_frame()
    assert frame["sampling.temperature"].unique().tolist() == [0.7, 1.0]
    assert len(frame) == 4 * 3
    alone = gs.read_measurement(cells[3] / "measurement")
    row = frame.loc[frame["cell"] == cells[3].name].iloc[0]
    assert row["mean_length"] == pytest.approx(np.mean(alone.rollouts.lengths))
    assert row["alpha"] == pytest.approx(gs.fit_length_scaling(alone).alpha, rel=1e-4)

    batches = drawn(monkeypatch)
    again = gs.run_sweep(file, out=out, progress=False)
    assert not batches
    assert again.to_frame().equals(frame)


@pytest.mark.slow
def test_a_run_of_one_cell_alone_has_the_same_numbers(file, made, tmp_path):
    last = load_sweep(file).cells[-1]
    run_experiment(last.experiment, tmp_path / "alone", progress=False)
    alone, in_sweep = (folder / "variance.csv" for folder in (tmp_path / "alone", made[0] / last.name))
    assert alone.read_bytes() == in_sweep.read_bytes()


def test_an_interrupted_sweep_keeps_its_finished_cells(file, tmp_path, monkeypatch):
    edited(file, **{"measurement.sketch_dim": [64]})
    real, calls = SamplingPlan.draw, []

    def interrupted(self, *given, **options):
        calls.append(None)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SamplingPlan, "draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gs.run_sweep(file, out=tmp_path / "out", progress=False)
    partly = gs.read_sweep(tmp_path / "out")
    assert len(partly.results) == len(partly.missing) == 1
    batches = drawn(monkeypatch)
    assert not gs.run_sweep(file, out=tmp_path / "out", progress=False).missing
    assert len(batches) == 3


def test_where_cells_are_run_cannot_vary(experiment, tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text(yaml.safe_dump(experiment.model_dump() | {"vary": {"execution.threads": [1, 2]}}))
    with pytest.raises(ValueError, match="execution.threads varies, which changes nothing of what is found"):
        gs.run_sweep(file, out=tmp_path / "out", progress=False)


def test_under_torchrun_a_sweep_is_refused_before_anything_is_written(file, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"run it without torchrun, with execution\.ranks_per_worker=2"):
        gs.run_sweep(file, out=tmp_path / "sweep", progress=False)
    assert not (tmp_path / "sweep").exists()


def test_a_cell_that_fails_does_not_keep_the_others_from_running(file, tmp_path, monkeypatch):
    real = sweep.run_experiment

    def failing(experiment, path, **options):
        if "sketch_dim=64" in path.name:
            raise ValueError("no room")
        return real(experiment, path, **options)

    monkeypatch.setattr(sweep, "run_experiment", failing)
    edited(file, **{"sampling.temperature": [0.7]})
    with pytest.raises(RuntimeError, match=r"1 of 2 cells failed, the first temperature=0\.7,sketch_dim=64: no room"):
        gs.run_sweep(file, out=tmp_path / "out", progress=False)
    assert len(gs.read_sweep(tmp_path / "out").results) == 1
    assert (tmp_path / "out" / "sweep.csv").exists()


def test_names_are_checked_in_every_cell_before_anything_is_run(experiment, tmp_path):
    data = experiment.model_dump() | {"vary": {"variance.reference": ["rloo", "rlo"]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(ValueError, match=r"reference=rlo: variance\.reference: .*rlo"):
        gs.run_sweep(tmp_path / "s.yaml", out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="reference=rlo"):
        check_cells(load_sweep(tmp_path / "s.yaml"))


def test_other_folders_are_left_alone(file, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("text")
    with pytest.raises(FileExistsError, match="exists and is not that of a sweep that gradstats wrote"):
        gs.run_sweep(file, out=tmp_path / "mine", progress=False)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        gs.run_sweep(file, out=tmp_path / "mine" / "thesis.tex", progress=False)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "text"


def test_what_decides_the_draws(experiment):
    def changed(**sections):
        data = experiment.model_dump()
        for section, fields in sections.items():
            data[section] |= fields
        return type(experiment).model_validate(data)

    at_one = changed(sampling={"temperature": 1.0})
    assert draws_alike(at_one, changed(sampling={"temperature": 1.0}, policy={"temperature": 0.6}))
    assert not draws_alike(experiment, changed(policy={"temperature": 0.6}))
    assert draws_alike(experiment, changed(measurement={"sketch_dim": 8}, variance={"estimators": ["rloo"]}))
    assert not draws_alike(experiment, changed(prompts={"seed": 1}))
    assert not draws_alike(experiment, changed(policy={"dtype": "float64"}))

    def measured(*estimators, target="auto"):
        return measured_by(changed(variance={"estimators": [*estimators], "target": target}))

    assert measured_by(experiment) != measured_by(changed(measurement={"sketch_dim": 8}))
    assert measured("recipe:dapo") not in (measured("rloo"), measured("recipe:dapo", target="importance"))
    assert measured("rloo") == measured("rloo", "otb", target="importance")


def edited(file, **changes):
    data = yaml.safe_load(file.read_text())
    data["vary"] |= changes
    file.write_text(yaml.safe_dump(data, sort_keys=False))


@pytest.mark.slow
def test_a_cell_that_is_added_never_takes_completions_of_other_settings(file, tmp_path):
    edited(file, **{"measurement.sketch_dim": [64]})
    gs.run_sweep(file, out=tmp_path / "out", progress=False)
    data = yaml.safe_load(file.read_text())
    data["sampling"]["max_new_tokens"] = 8
    data["vary"]["measurement.sketch_dim"] = [64, 128]
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(RuntimeError, match=r"2 of 4 cells failed, the first .*sketch_dim=64: .*max_new_tokens"):
        gs.run_sweep(file, out=tmp_path / "out", progress=False)
    added = gs.read_rollouts(tmp_path / "out" / "temperature=1.0,sketch_dim=128" / "rollouts")
    assert max(added.lengths) <= 8


def test_cells_of_earlier_calls_stay_listed(file, made, out):
    edited(file, **{"measurement.sketch_dim": [128]})
    second = gs.run_sweep(file, out=out, progress=False)
    added = {"temperature=0.7,sketch_dim=128", "temperature=1.0,sketch_dim=128"}
    assert set(second.settings) == {*made[1].settings, *added}
    assert not second.missing
    data = yaml.safe_load(file.read_text()) | {"name": "another"}
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match="holds the sweep 'tiny sweep', not 'another'"):
        gs.run_sweep(file, out=out, progress=False)


def test_shards_of_a_sibling_are_foreign(out):
    first, second = (out / f"temperature=0.7,sketch_dim={dim}" / "measurement" for dim in (64, 256))
    shutil.rmtree(second / "shard-00001")
    shutil.copytree(first / "shard-00001", second / "shard-00001")
    with pytest.raises(ValueError, match="shard-00001"):
        gs.read_measurement(second)


def test_a_cell_in_the_wrong_place_is_named(made, out):
    one, _, other, _ = made[1].settings
    shutil.rmtree(out / other)
    shutil.copytree(out / one, out / other)
    with pytest.raises(ValueError, match=r"was run with sampling\.temperature=0\.7, and .* lists it with 1\.0"):
        gs.read_sweep(out)


@pytest.mark.slow
def test_remains_of_a_killed_sweep_are_no_foreign_folder(file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".sweep.json.host.1.abc.partial").write_text("{")
    gs.run_sweep(file, ["prompts.n=4"], out=tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob(".*.partial"))


@pytest.mark.parametrize("link", ["sweep.csv", "figures", "temperature=0.7,sketch_dim=64"])
def test_a_link_in_the_folder_of_a_sweep_is_not_followed(file, tmp_path, link):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (tmp_path / "thesis.csv").write_text("cell,years of work")
    write_json(out / "sweep.json", {"name": "tiny sweep", "varied": [], "cells": []})
    (out / link).symlink_to(tmp_path / "thesis.csv" if link == "sweep.csv" else elsewhere)
    before = sorted(out.iterdir())
    with pytest.raises(ValueError, match=f"{link} is a symbolic link, and nothing is written into the folder of a sw"):
        gs.run_sweep(file, out=out, progress=False)
    assert sorted(out.iterdir()) == before
    assert (tmp_path / "thesis.csv").read_text() == "cell,years of work"
    assert not list(elsewhere.iterdir())


@pytest.mark.slow  # it analyses every cell again
def test_the_last_of_several_processes_joins_a_sweep_and_the_others_repeat_no_cell(out, file, monkeypatch):
    missing, ran = load_sweep(file).cells[-1].name, []
    for name in (missing, "sweep.csv"):
        remove_path(out / name)
    own = sweep.run_experiment
    monkeypatch.setattr(
        sweep, "run_experiment", lambda one, path, **how: ran.append(path.name) or own(one, path, **how)
    )
    with together(out) as another:
        another.share()
        assert gs.run_sweep(file, out=out, progress=False) is None
        assert ran == [missing]
        assert not (out / "sweep.csv").exists()
    assert not gs.run_sweep(file, out=out, progress=False).missing
    assert len(ran) == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_that_start_one_sweep_at_once_share_its_shards(made, file, tmp_path):
    words = [sys.executable, "-m", "gradstats", "run", file, "--out", tmp_path / "two", "--no-progress"]
    tests = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    started = [subprocess.Popen(words, env=os.environ | {"PYTHONPATH": tests}) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    for name in (*made[1].settings, "."):
        table = "sweep.csv" if name == "." else "variance.csv"
        assert (tmp_path / "two" / name / table).read_bytes() == (made[0] / name / table).read_bytes()
    assert not list((tmp_path / "two").rglob(".*"))
    hosts = [read_json(tmp_path / "two" / name / "manifest.json")["execution"] for name in made[1].settings]
    # Both temperatures are drawn and all four cells measured once; what cells draw alike is linked.
    assert sum(sum(one["shards_by_host"].values()) for one in hosts) == 2 * 4 + 4 * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_adapters_of_a_training_run_are_checkpoints_in_the_order_of_their_steps(drawing, tmp_path):
    experiment = drawing
    peft = pytest.importorskip("peft")
    training = tmp_path / "training"
    for step in (100, 20):
        model = gs.load_policy(experiment.policy.name, progress=False).model
        torch.manual_seed(step)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        adapted = peft.get_peft_model(model, config)
        adapted.peft_config["default"].base_model_name_or_path = experiment.policy.name
        adapted.save_pretrained(training / f"checkpoint-{step}")
    frames = {}
    for setting in ("policy.adapter", "policy.name"):  # beside the base, and alone: each names its base
        data = experiment.model_dump() | {"vary": {setting: str(training / "checkpoint-*")}}
        data["measurement"]["blocks"] = "kind"
        path = tmp_path / f"{setting}.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        result = gs.run_sweep(path, out=tmp_path / setting, progress=False)
        steps = [Path(str(cell[setting])).name for cell in result.settings.values()]
        assert steps == ["checkpoint-20", "checkpoint-100"]
        frames[setting] = result.to_frame()
        assert {"noise_to_signal", "trace_cov", "alpha"} <= set(frames[setting])
        measured = [gs.read_measurement(tmp_path / setting / cell) for cell in result.settings]
        assert measured[0].rollouts.prompt_id.tolist() == measured[1].rollouts.prompt_id.tolist()  # fixed prompts
        assert not np.allclose(measured[0].sq_norms[:4], measured[1].sq_norms[:4])
        assert result.path.joinpath("figures", f"{setting.replace('.', '_')}.png").is_file()
    columns = ["estimator", "trace_cov", "ratio", "mean_length", "alpha"]
    pd.testing.assert_frame_equal(frames["policy.adapter"][columns], frames["policy.name"][columns])
    adapter = gs.load_policy(training / "checkpoint-20", progress=False)
    one = gs.measure(adapter, gs.read_rollouts(tmp_path / "policy.name" / "name=checkpoint-20"), progress=False)
    kept = gs.read_measurement(tmp_path / "policy.name" / "name=checkpoint-20")
    np.testing.assert_allclose(one.sq_norms, kept.sq_norms, rtol=1e-5)
