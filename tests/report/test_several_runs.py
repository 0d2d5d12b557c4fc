"""Tables of several runs: a row for each, and one for each estimator in each."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from saved_runs import ESTIMATORS, save_run

from gradstats.config.sections import FiguresSection
from gradstats.report.run_tables import levels_of, numbers_of_run, run_names, several_tables
from gradstats.report.saved_results import read_results
from gradstats.system.files import read_json, write_json


@pytest.fixture
def runs(tmp_path):
    folders = [save_run(tmp_path / "one", name="one"), save_run(tmp_path / "two", "two", 1)]
    return {folder.name: read_results(folder) for folder in folders}


def test_every_run_has_a_row_with_its_own_numbers(runs, tmp_path):
    table = several_tables(runs, FiguresSection(labels={"two": "1.5B"}))["runs"]
    assert table.rows == ("one", "1.5B")
    alpha = read_json(tmp_path / "two" / "alpha.json")
    assert table.columns["α"][1] == (alpha["alpha"], alpha["alpha_low"], alpha["alpha_high"])
    rewards = pd.read_csv(tmp_path / "one" / "tables" / "length_scaling.csv").groupby("prompt_id")["reward"].mean()
    assert table.columns["mean reward"][0][0] == pytest.approx(rewards.mean())
    assert "cut off" not in table.columns  # not on record
    assert table.source["run"].tolist() == ["one", "1.5B"]
    assert "with 95% intervals" in table.caption


def test_estimators_stand_together_run_by_run_with_the_best_set_of_each(runs):
    table = several_tables(runs, FiguresSection(estimators=[ESTIMATORS[1], ESTIMATORS[0]]))["variance"]
    assert table.rows == ("REINFORCE, one", "REINFORCE, two", "RLOO, one", "RLOO, two")
    assert table.source["estimator"].tolist() == [ESTIMATORS[1]] * 2 + [ESTIMATORS[0]] * 2
    assert [value for value, _, _ in table.columns["ratio to RLOO"]] == [1.3, 1.3, 1.0, 1.0]
    assert table.bold == frozenset()
    for run in runs.values():
        run.variance["in_best_set"] = [True, False, True, None]
    best = several_tables(runs, FiguresSection())["variance"]
    assert sorted(best.rows[row] for row, _ in best.bold) == [
        "RLOO, one", "RLOO, two", "length-weighted, α = 0.8, leave-one-out, one",
        "length-weighted, α = 0.8, leave-one-out, two",
    ]  # fmt: skip
    assert best.caption.endswith("No interval compares two runs. Bold: the best set of each run.")


def test_runs_of_an_estimator_are_sorted_by_value_where_asked(runs):
    runs["two"].variance.loc[0, "matched_ratio"] = 0.5
    assert several_tables(runs, FiguresSection(), by_value=True)["variance"].rows[:2] == ("RLOO, two", "RLOO, one")
    assert several_tables(runs, FiguresSection())["variance"].rows[:2] == ("RLOO, one", "RLOO, two")


def test_metrics_are_named_and_other_references_refused(tmp_path, runs):
    for run in runs.values():
        run.variance.attrs["metric"] = "euclidean"
    assert "tr Cov" in several_tables(runs, FiguresSection())["variance"].columns
    write_json(tmp_path / "two" / "alpha.json", read_json(tmp_path / "two" / "alpha.json") | {"metric": "adam"})
    mixed = runs | {"two": read_results(tmp_path / "two")}
    table = several_tables(mixed, FiguresSection())["variance"]
    assert "tr Cov" not in table.columns
    assert "measured in the metric euclidean or adam." in table.full_caption
    runs["two"].variance.attrs["reference"] = "reinforce"
    with pytest.raises(ValueError, match=r"to different references \(rloo, reinforce\), which are different units"):
        several_tables(runs, FiguresSection())


def test_names_and_levels(runs, tmp_path):
    one, two = runs.values()
    assert run_names([one, two]) == ["one", "two"]
    twin = read_results(save_run(tmp_path / "again", name="one"))
    assert run_names([one, twin]) == ["one", "again"]
    assert levels_of([one, two]) == "95%"
    (tmp_path / "one" / "alpha.json").unlink()
    assert all(map(math.isnan, numbers_of_run(read_results(tmp_path / "one"))["alpha"]))
