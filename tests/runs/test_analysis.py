"""The analysis step: what it writes, and what it does where the data allow no result."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import gradstats
from gradstats.report.figures import figures_as_svg
from gradstats.report.saved_results import read_results
from gradstats.rollouts.table import Rollouts
from gradstats.runs.analysis import analyse, compare_estimators, fit_alpha
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import run_experiment


def test_the_analysis_may_change_between_calls(finished, experiment):
    other = experiment.model_copy(
        update={"variance": experiment.variance.model_copy(update={"estimators": ["rloo", "group_mean"]})}
    )
    result = run_experiment(other, finished.run.path, progress=False)
    assert pd.read_csv(result.run.path / "variance.csv")["estimator"].tolist() == ["rloo", "group_mean"]
    run_experiment(experiment, finished.run.path, progress=False)


def test_data_that_allow_no_fit_become_a_remark_and_cost_nothing_else(experiment, tmp_path):
    short = experiment.model_copy(update={"sampling": experiment.sampling.model_copy(update={"max_new_tokens": 1})})
    result = run_experiment(short, tmp_path / "run", progress=False)
    assert result.fit is None
    assert any(remark.startswith("length scaling: ") for remark in result.run.remarks)
    assert result.comparison is not None
    assert (tmp_path / "run" / "variance.csv").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_repeated_analysis_that_fails_leaves_no_results_of_the_earlier_one(finished, tmp_path, monkeypatch):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    run = RunDirectory(path, finished.run.experiment)
    (path / "variance_mine.csv").write_text("mine\n")
    assert {name for name in RESULTS if (path / name).exists()} == RESULTS

    def refused(*_: object) -> None:
        raise ValueError("not with these data")

    monkeypatch.setattr("gradstats.runs.analysis.compare_estimators", refused)
    result = analyse(run)
    assert result.comparison is None
    assert {name for name in RESULTS if (path / name).exists()} == {"alpha.json", "report.html"}
    assert "variance: not with these data" in run.read_manifest()["remarks"]
    assert not {"variance.csv", "variance.json"} & set(run.read_manifest()["files"])
    assert "not with these data" in (path / "report.html").read_text()
    monkeypatch.setattr("gradstats.runs.analysis.fit_alpha", refused)
    analyse(run)
    assert {name for name in RESULTS if (path / name).exists()} == set()
    assert (path / "variance_mine.csv").exists()


RESULTS = {"alpha.json", "variance.csv", "variance.json", "report.html"}


def test_the_points_behind_the_fit_give_the_fit(finished, tmp_path):
    run = RunDirectory(tmp_path, finished.run.experiment)
    paths = []
    report = fit_alpha(run, finished.measured, paths)
    points = pd.read_csv(tmp_path / "tables" / "length_scaling.csv")
    fit = gradstats.fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"], groups=points["prompt_id"])
    assert fit.alpha == pytest.approx(report.fit.alpha)
    assert json.loads((tmp_path / "alpha.json").read_text())["alpha"] == pytest.approx(fit.alpha)
    assert {str(path.relative_to(tmp_path)) for path in paths} == {
        "alpha.json", "tables/length_scaling.csv", "tables/alpha.tex", "tables/alpha.md", "tables/alpha.csv",
    }  # fmt: skip
    assert all(path.stat().st_size for path in paths)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_comparison_is_written_with_its_settings(finished, tmp_path):
    run = RunDirectory(tmp_path, finished.run.experiment)
    comparison = compare_estimators(run, finished.measured, [])
    about = json.loads((tmp_path / "variance.json").read_text())
    assert (about["reference"], about["n_prompts"]) == ("rloo", 6)
    assert run.remarks == list(comparison.notes) == about["notes"]
    frame = pd.read_csv(tmp_path / "variance.csv")
    np.testing.assert_allclose(frame["trace_cov"], comparison.to_frame()["trace_cov"])


def test_a_sampler_that_differs_from_the_scorer_becomes_a_remark(finished, tmp_path):
    """The sampler truncated to 3 tokens, and the scorer scores all of them."""
    rollouts = finished.measured.rollouts
    frame = rollouts.frame.assign(sampler_logprobs=[values.tolist() for values in finished.measured.logprobs])
    metadata = rollouts.metadata | {"sampler": rollouts.metadata["sampler"] | {"top_k": 3}}
    measured = replace(finished.measured, rollouts=Rollouts(frame, metadata))
    run = RunDirectory(tmp_path, finished.run.experiment)
    run.measurement.mkdir()
    run.rollouts.mkdir()
    measured.save(run.measurement / "shard-00000")
    result = analyse(run)
    assert result.gap is not None
    assert result.gap.off_policy
    assert result.gap.sentence() in run.remarks
    assert run.read_manifest()["sampler_gap"]["sentence"] == result.gap.sentence()


def test_ratios_are_written_and_drawn_only_where_they_differ_from_one(finished, tmp_path):
    tables = finished.run.path / "tables"
    ratios = pd.read_csv(tables / "ratios.csv")
    assert ratios["ratio"].tolist()[:3] == ["token", "product", "geometric_mean"]
    assert {"grpo", "dapo"} <= set(pd.read_csv(tables / "ratio_clipping.csv")["recipe"])
    assert not (finished.run.path / "figures" / "ratios.png").exists()
    saved = read_results(finished.run.path)
    drawn_off_policy = replace(saved, breakdowns=saved.breakdowns | {"ratios": ratios.assign(chi_squared=0.2)})
    assert "ratios" in figures_as_svg(drawn_off_policy)
