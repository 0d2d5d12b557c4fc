"""Every kind of label in every place that takes one, from a folder other than that of the experiment file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from command_line import run as call

import gradstats as gs
from gradstats.config.experiment import load_experiment
from gradstats.runs.pipeline import run_experiment

LABELS = {
    "length_weighted(alpha=0.8, loo=True)": "length_weighted(alpha=0.8, loo=True)",
    "recipe:dr_grpo(loo=True)": "Dr. GRPO, leave-one-out",
    "labels_of_mine:lowered(by=0.25)": "labels_of_mine:lowered(by=0.25)",
}
#: Of each, the label of a curve and the parameter that it varies.
VARIED = {
    "length_weighted(alpha=0.8, loo=True)": ("length_weighted(loo=True)", "alpha=0:1:2"),
    "recipe:dr_grpo(loo=True)": ("recipe:dr_grpo(loo=True)", "max_tokens=8:16:2"),
    "labels_of_mine:lowered(by=0.25)": ("labels_of_mine:lowered", "by=0:0.5:2"),
}
MODULE = "def lowered(batch, by=0.0):\n    return batch.rewards - by\n"


@pytest.fixture(scope="module")
def run(policy_folder, tmp_path_factory):
    """A run whose experiment file names every label, with the user's module beside it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "labels_of_mine.py").write_text(MODULE)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 9)))
    (folder / "labels.yaml").write_text(
        f"""
        policy: {{name: {policy_folder}}}
        prompts: {{source: {folder / "p.jsonl"}}}
        sampling: {{group_size: 6, max_new_tokens: 12, reward: "small_runs:consonants"}}
        measurement: {{sketch_dim: 64}}
        variance: {{estimators: [rloo, "{'", "'.join(LABELS)}"]}}
        figures: {{formats: [png]}}
        """
    )
    path = tmp_path_factory.mktemp("runs") / "labels"
    run_experiment(load_experiment(folder / "labels.yaml"), path, progress=False)
    yield path
    sys.modules.pop("labels_of_mine", None)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _experiment_file(run, label, monkeypatch, capsys):
    assert label in pd.read_csv(run / "variance.csv").set_index("estimator")["trace_cov"].dropna()


def _compare(run, label, monkeypatch, capsys):
    monkeypatch.chdir(run / json.loads((run / "manifest.json").read_text())["experiment_folder"])
    frame = gs.compare(gs.read_measurement(run / "measurement"), [label]).to_frame()
    assert frame["estimator"].tolist() == [label]


def _command(*words):
    def place(run, label, monkeypatch, capsys):
        filled = [label if word == "LABEL" else word for word in words]
        code, out, err = call(monkeypatch, capsys, filled[0], run, *filled[1:], "--trust")
        assert (code, "NaN:" in err) == (0, False), err
        assert label in out + err  # a scale that 8 prompts do not resolve is named in a note

    return place


def _curve(run, label, monkeypatch, capsys):
    varied, values = VARIED[label]
    code, out, err = call(monkeypatch, capsys, "curve", run, varied, values, "--trust")
    assert (code, "NaN:" in err) == (0, False), err
    assert varied in out


def _figures(run, label, monkeypatch, capsys):
    assert label in set(pd.read_csv(run / "figures" / "variance.csv")["estimator"])
    assert call(monkeypatch, capsys, "figures", run)[0] == 0


def _report(run, label, monkeypatch, capsys):
    assert call(monkeypatch, capsys, "report", run)[0] == 0
    assert LABELS[label] in (run / "report.html").read_text()


PLACES = {
    "experiment file": _experiment_file,
    "compare": _compare,
    "--estimators": _command("variance", "--estimators", "rloo", "LABEL"),
    "group-size": _command("group-size", "LABEL", "--group-size", "3"),
    "shift": _command("shift", "LABEL"),
    "curve": _curve,
    "allocate": _command("allocate", "rloo", "LABEL", "--tokens", "100"),
    "by-success": _command("by-success", "LABEL", "--bins", "2"),
    "figures": _figures,
    "report": _report,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("place", "label"),
    [
        # Drawing takes long: of those that draw, the label of the user's own module stands for the others.
        pytest.param(place, label, marks=[pytest.mark.slow] if drawing and "of_mine" not in label else [])
        for place, drawing in ((place, place in ("figures", "report")) for place in PLACES)
        for label in LABELS
    ],
)
def test_every_label_works_in_every_place(run, place, label, monkeypatch, capsys):
    PLACES[place](run, label, monkeypatch, capsys)


@pytest.mark.parametrize("command", ["group-size", "shift", "variance"])
def test_the_recorded_folder_is_searched_with_permission_only(run, command, monkeypatch, capsys):
    words = ["--estimators", "labels_of_mine:lowered"] if command == "variance" else ["labels_of_mine:lowered"]
    code, _, err = call(monkeypatch, capsys, command, run, *words)
    folder = (run / json.loads((run / "manifest.json").read_text())["experiment_folder"]).resolve()
    assert code == 1
    assert "there is no module 'labels_of_mine' in " in err
    assert f"the experiment file of {run} was in {folder}: add --trust to search there as well" in err


def test_a_folder_that_is_gone_or_was_never_recorded_is_not_searched(run, tmp_path, monkeypatch, capsys):
    for recorded in ("../nowhere", None, 3):
        (tmp_path / "manifest.json").write_text(json.dumps({"experiment_folder": recorded}))
        code, _, err = call(monkeypatch, capsys, "shift", tmp_path, "labels_of_mine:lowered", "--trust")
        assert code == 1
        assert "there is no module 'labels_of_mine'" in err
        assert "add --trust" not in err


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("given", [[], ["--reward", "rewards_of_mine:twice"]])
def test_a_run_is_scored_again_by_the_module_beside_its_experiment_file(run, given, monkeypatch, capsys):
    """The run names its estimators' module itself, and the reward's is named with the command."""
    copy = Path(shutil.copytree(run, run.parent / f"scored_again_{len(given)}"))  # records the same folder
    folder = copy / json.loads((copy / "manifest.json").read_text())["experiment_folder"]
    (folder / "rewards_of_mine.py").write_text("def twice(text, problem):\n    return 2.0 * text.count('a')\n")
    sys.modules.pop("labels_of_mine", None)
    code, _, err = call(monkeypatch, capsys, "regrade", copy, *given, "--trust", "--no-progress")
    assert code == 0, err
    assert "labels_of_mine:lowered(by=0.25)" in pd.read_csv(copy / "variance.csv")["estimator"].tolist()
    assert gs.read_rollouts(copy / "rollouts").metadata["reward"] == (given[-1:] or ["small_runs:consonants"])[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_recorded_experiment_runs_again_with_the_module_beside_its_file(run, monkeypatch, capsys):
    sys.modules.pop("labels_of_mine", None)
    code, _, err = call(monkeypatch, capsys, "run", run / "experiment.yaml", "--out", run, "--dry-run", "--trust")
    assert code == 0, err
