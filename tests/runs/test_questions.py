"""The questions of an experiment file: left out, asked with other settings, and a user's own, from CONTRIBUTING."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run

from gradstats.analyses import registry
from gradstats.config.experiment import load_experiment_file
from gradstats.config.trust import UntrustedCodeError
from gradstats.report.page import questions_on_page
from gradstats.report.saved_results import read_results
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.validate import check_names
from gradstats.system.files import read_json

OWN = "own_lengths:question"


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished.run.path, tmp_path / "run")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The question of CONTRIBUTING as a module of the working directory, forgotten afterwards."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = text.partition("## Add a question")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "own_lengths.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    yield
    forget()


def forget():
    """Make this process one that has not imported the question."""
    sys.modules.pop("own_lengths", None)
    registry._own.pop(OWN, None)


def with_questions(experiment, **asked):
    return experiment.model_copy(update={"analyses": asked})


def test_questions_are_left_out_and_asked_otherwise(experiment, copied):
    assert (copied / "tables" / "allocation.csv").exists()
    curve = {"estimator": "asymmetric(loo=True)", "values": "delta=-0.5,0", "n_resamples": 4}
    asked = with_questions(experiment, allocation=False, success_bins={"bins": 2}, curve=curve)
    run_experiment(asked, copied, progress=False)
    assert not (copied / "tables" / "allocation.csv").exists()
    bins = pd.read_csv(copied / "tables" / "success_bins.csv")
    assert len(bins[bins["estimator"] == "rloo"]) == 2
    assert "curve_asymmetric_loo_true_delta" in read_results(copied).answers
    run_experiment(with_questions(experiment, curve=False), copied, progress=False)
    assert "curve_asymmetric_loo_true_delta" not in read_results(copied).answers
    assert (copied / "tables" / "allocation.csv").exists()


@pytest.mark.filterwarnings("ignore")
def test_each_command_on_the_page_gives_the_answer_of_the_run_again(experiment, copied, monkeypatch, capsys):
    variance = {"group_size": 2, "reference": "grpo", "prompts_per_batch": 16, "confidence_level": 0.8, "seed": 3}
    changed = {
        "variance": experiment.variance.model_copy(update=variance),
        "length_scaling": experiment.length_scaling.model_copy(update={"confidence_level": 0.5}),
    }
    asked = with_questions(experiment, success_bins={"bins": 2}, group_sizes={"estimators": ["rloo", "grpo"]})
    run_experiment(asked.model_copy(update=changed), copied, progress=False)
    saved = read_results(copied)
    assert any("its 80% interval" in one for one in saved.manifest["remarks"])
    assert not any("its 95% interval" in one for one in saved.manifest["remarks"])
    commands = {one["id"]: shlex.split(one["command"]) for one in questions_on_page(saved, [])}
    assert {"variance", "alpha", "alpha_by_block", "length_bins", "success_bins", "group_sizes"} <= set(commands)
    for name, words in commands.items():
        code, out, err = run(monkeypatch, capsys, *words[1:], "--json")
        assert code == 0, err
        expected = saved.answers[name].frame
        # In a run the sketches are rotated, so that what is 0 but for rounding may differ.
        columns = [column for column in expected if not column.startswith("matched_bias_share")]
        found = pd.DataFrame(json.loads(out)["rows"]).reindex(columns=columns).replace({"inf": np.inf, "-inf": -np.inf})
        found, expected = found.fillna(np.nan), expected[columns].fillna(np.nan)
        pd.testing.assert_frame_equal(found.astype(expected.dtypes), expected, obj=name)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"alocation": False}, "analyses: there is no question 'alocation': did you mean allocation"),
        ({"success_bins": {"bin": 8}}, "analyses.success_bins: there is no setting 'bin': did you mean bins"),
        ({"allocation": {"tokens": "many"}}, "analyses.allocation: tokens is 'many': it should be a valid integer"),
        ({"curve": {"estimator": "rloo"}}, "analyses.curve: values must be given"),
        (
            {"length_reward": True},
            "analyses.length_reward: {} cannot be asked in a run, .* `gradstats ask RUN length_re",
        ),
        (
            {"plan": {"half_width": 0.1}},
            "analyses.plan: {'half_width': 0.1} cannot be asked in a run, .* ask RUN plan`",
        ),
        ({"variance": {"estimators": ["rloo"]}}, "analyses.variance: .*with the settings of its section `variance:`"),
        ({"variance": False}, "analyses.variance: .*with the settings of its section `variance:`"),
        ({"alpha": True}, "analyses.alpha: .*with the settings of its section `length_scaling:`"),
        (
            {"optimal_baselines": {"target": "importance"}},
            "analyses.optimal_baselines: .* have no importance weights, so that target='importance' does not judge",
        ),
        ({"allocation": {"estimators": ["rlo"]}}, "analyses.allocation: no estimator is called 'rlo'"),
    ],
)
def test_wrong_questions_are_refused_when_the_file_is_checked(experiment, asked, message):
    with pytest.raises(ValueError, match=message):
        check_names(with_questions(experiment, **asked))


def test_tokens_are_left_out_and_studied_in_groups_of_another_size(experiment, tmp_path):
    section = experiment.measurement.model_copy(update={"token_probes": 8, "sketch_dim": 64})
    probing, path = experiment.model_copy(update={"measurement": section}), tmp_path / "run"
    file = path / "tables" / "tokens.csv"
    run_experiment(probing, path, progress=False)
    whole = pd.read_csv(file)
    run_experiment(with_questions(probing, tokens={"group_size": 2}), path, progress=False)
    smaller = pd.read_csv(file)
    assert whole["otb_ratio"].notna().all()
    assert (smaller["otb_ratio"] != whole["otb_ratio"]).all()
    assert smaller["rank_correlation"].equals(whole["rank_correlation"])
    run_experiment(with_questions(probing, tokens=False), path, progress=False)
    assert not file.exists()
    assert "tokens" not in read_results(path).answers


def test_a_question_of_ones_own_is_asked_of_a_run(drawn, own, tmp_path, monkeypatch, capsys):
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    code, out, err = run(monkeypatch, capsys, "ask", path, OWN, "--longest", 3, "--out", tmp_path / "found", "--json")
    assert code == 0, err
    assert len(json.loads(out)["rows"]) == 3
    assert (tmp_path / "found" / "figures" / "lengths.pdf").is_file()
    code, out, err = run(monkeypatch, capsys, "ask", path, OWN)
    assert code == 0, err
    assert "mean length" in out
    assert read_json(path / "tables" / "lengths.json")["question"] == OWN
    assert (path / "figures" / "lengths.png").is_file()
    to_tables = ["export", path, "--only", "tables"]
    for words, written in ((["report", path], "report.html"), (to_tables, "tables/lengths.tex")):
        forget()
        (path / written).unlink(missing_ok=True)
        code, _, err = run(monkeypatch, capsys, *words)
        assert code == 0, err
        assert f"lengths was asked as {OWN}" in " ".join(err.split())
        assert not registry._own
        code, _, err = run(monkeypatch, capsys, *words, "--trust")
        assert code == 0, err
        assert "lengths" in (path / written).read_text(encoding="utf-8").lower()


def test_a_question_of_ones_own_is_asked_in_a_run(drawing, drawn, own, tmp_path):
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    run_experiment(with_questions(drawing, **{OWN: {"longest": 2}}), path, progress=False)
    assert len(read_results(path).answers["lengths"].frame) == 2
    assert (path / "figures" / "lengths.png").is_file()
    assert "Mean lengths." in (path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(UntrustedCodeError, match=f"analyses='{OWN}'"):
        load_experiment_file(path / "experiment.yaml")
