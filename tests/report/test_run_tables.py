"""Every table of a run as LaTeX."""

import math
from pathlib import Path

import pandas as pd
import pytest
from saved_runs import ESTIMATORS, change_frame, forget, save_answer, save_run, saved_answer

from gradstats.analyses import registry
from gradstats.analyses.declaration import Analysis, Column
from gradstats.answers import Answer
from gradstats.config.sections import FiguresSection
from gradstats.report.analysis_tables import alpha_table
from gradstats.report.latex import Layout
from gradstats.report.run_tables import (
    latex_of,
    layout_for,
    left_out,
    levels_of,
    numbers_of_run,
    run_names,
    run_tables,
    runs_table,
    several_tables,
)
from gradstats.report.saved_results import ENDS, read_results
from gradstats.system.files import read_json

COMMITTED = Path(__file__).parents[2] / "figures"


def tables_of(run, style=None, **options):
    return run_tables(run.answers, run.name, run.figure_style if style is None else style, **options)


@pytest.fixture(scope="module")
def tables():
    return tables_of(read_results(COMMITTED / "embedded_values"))


def test_the_columns_that_answer_come_first_where_there_is_no_room_for_all(tables):
    shown = {name: table.headings_at(Layout("icml", "half")) for name, table in tables.items()}
    assert {"share of gradient", "share of variance"} <= set(shown["length_bins"])
    assert shown["variance"][:1] == ["relative noise"]


def test_every_table_is_written_at_its_width(tables, tmp_path):
    texts = latex_of(tables, tmp_path, Layout("icml", "half"))
    assert list(texts) == [tmp_path / f"{name}.tex" for name in tables]
    assert all("icml's half column, 3.25 in" in text for text in texts.values())
    for path, text in texts.items():
        path.write_text(text)
    # Again, at another width.
    assert r"\begin{table*}" in latex_of(tables, tmp_path, Layout("icml", "full"))[next(iter(texts))]


def test_columns_are_asked_of_the_tables_that_have_them(tables):
    asked = Layout("icml", "half", columns=("cosine", "tokens_saved"))
    assert layout_for(tables["variance"], asked).columns == ("cosine",)
    assert layout_for(tables["allocation"], asked).columns == ("tokens_saved",)
    assert layout_for(tables["critic"], asked).columns == ()
    assert left_out(tables["variance"], layout_for(tables["variance"], asked)) == [
        heading for heading in tables["variance"].columns if heading != "cosine"
    ]
    with pytest.raises(ValueError, match="--columns cosin: no table of the run has such a column, only"):
        latex_of(tables, Path("nowhere"), Layout(columns=("cosin",)))


def test_rows_are_those_of_the_estimators_asked_for_under_their_names(tables):
    run = read_results(COMMITTED / "embedded_values")
    labels = run.variance["estimator"].tolist()
    style = run.figure_style.model_copy(update={"estimators": [labels[3], labels[0]], "labels": {labels[3]: "ours"}})
    found = tables_of(run, style)
    assert found["variance"].rows[0] == "ours"
    assert len(found["variance"].rows) == 2
    assert found["variance"].source["estimator"].tolist() == [labels[3], labels[0]]
    assert all(not row.startswith("recipe:") for row in tables["ratio_clipping"].rows)
    matched = [value for value, _, _ in tables_of(run, by_value=True)["variance"].columns["relative noise"]]
    known = [value for value in matched if value == value]
    assert known == sorted(known)
    assert len(known) > 2
    assert matched[: len(known)] == known


def test_tables_have_labels_of_their_own_and_a_learned_baseline_and_a_published_one_names():
    of_run = tables_of(read_results(COMMITTED / "embedded"))  # with two curves
    assert len({table.label for table in of_run.values()}) == len(of_run)
    rows = of_run["optimal_baselines"].rows
    assert "RLOO (published)" in rows
    assert rows[0].startswith("learned exponent: α 0.43 [−0.071, 0.68]")


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


def test_estimators_stand_together_run_by_run_and_are_bold_where_shown_to_be_below(runs):
    table = several_tables(runs, FiguresSection(estimators=[ESTIMATORS[1], ESTIMATORS[0]]))["variance"]
    assert table.rows == ("REINFORCE, one", "REINFORCE, two", "RLOO, one", "RLOO, two")
    assert table.source["estimator"].tolist() == [ESTIMATORS[1]] * 2 + [ESTIMATORS[0]] * 2
    assert [value for value, _, _ in table.columns["ratio to RLOO"]] == [1.3, 1.3, 1.0, 1.0]
    assert table.bold == frozenset()
    for run in runs.values():
        run.variance["matched_ratio_simultaneous_low"] = 0.5
        run.variance["matched_ratio_simultaneous_high"] = [1.0, 1.2, 0.9, math.nan]
    best = several_tables(runs, FiguresSection())["variance"]
    assert sorted(best.rows[row] for row, _ in best.bold) == [
        "length-weighted, α = 0.8, leave-one-out, one",
        "length-weighted, α = 0.8, leave-one-out, two",
    ]  # fmt: skip
    assert best.caption.endswith(
        "No interval compares two runs. Bold: shown to be below 1, corrected for comparing all rows of the run."
    )


def test_estimators_that_are_equal_by_construction_share_a_row(tmp_path):
    def doubled(frame):
        kept = frame[frame["estimator"].isin(ESTIMATORS[:2])]
        again = kept[:1].assign(estimator="recipe:cispo")
        unknown = kept[:1].assign(estimator="gae").assign(**dict.fromkeys(kept.select_dtypes("number"), math.nan))
        return pd.concat([kept, again, unknown, unknown.assign(estimator="recipe:ppo")], ignore_index=True)

    folder = save_run(tmp_path / "run")
    change_frame(folder, "variance", doubled)
    table = run_tables(read_results(folder).answers, "run", FiguresSection())["variance"]
    assert table.rows == ("RLOO = CISPO", "REINFORCE", "GAE", "PPO")
    assert {len(column) for column in table.columns.values()} == {4}
    assert len(table.source) == 5


def test_runs_of_an_estimator_are_sorted_by_value_where_asked(runs):
    runs["two"].variance.loc[0, "matched_ratio"] = 0.5
    assert several_tables(runs, FiguresSection(), by_value=True)["variance"].rows[:2] == ("RLOO, two", "RLOO, one")
    assert several_tables(runs, FiguresSection())["variance"].rows[:2] == ("RLOO, one", "RLOO, two")


def test_metrics_are_named_and_other_references_refused(tmp_path, runs):
    assert "tr Cov" in several_tables(runs, FiguresSection())["variance"].columns
    save_answer(tmp_path / "two", saved_answer(tmp_path / "two", "variance"), metric="adam")
    mixed = runs | {"two": read_results(tmp_path / "two")}
    table = several_tables(mixed, FiguresSection())["variance"]
    assert "tr Cov" not in table.columns
    assert "measured in the metric euclidean or adam." in table.full_caption
    runs["two"].variance.attrs["reference"] = "reinforce"
    with pytest.raises(ValueError, match=r"to different references \(rloo, reinforce\), which are different units"):
        several_tables(runs, FiguresSection())


def test_names_of_runs_differ_and_what_one_lacks_is_nan(runs, tmp_path):
    one, two = runs.values()
    assert run_names([one, two]) == ["one", "two"]
    assert run_names([one, read_results(save_run(tmp_path / "again", name="one"))]) == ["one", "again"]
    forget(tmp_path / "one", "alpha")
    numbers = numbers_of_run(read_results(tmp_path / "one"))
    assert all(math.isnan(numbers[f"alpha{end}"]) for end in ENDS)


def test_a_number_without_an_interval_is_a_column(monkeypatch):
    columns = (Column("prompt", "name"), Column("length", "mean length of its completions", "mean length"))
    lengths = Analysis(name="lengths", ask=len, options=(), columns=columns)
    monkeypatch.setitem(registry._own, "mine:lengths", lengths)
    answer = Answer("mine:lengths", pd.DataFrame({"prompt": ["a"], "length": [3.0]}))
    assert list(run_tables({"lengths": answer}, "run", FiguresSection())["lengths"].columns) == ["mean length"]


def test_each_caption_states_the_levels_of_its_own_numbers(runs):
    one, two = runs.values()
    one.answers["alpha"].about["confidence_level"] = 0.5
    assert [levels_of([one, two], names) for names in (["alpha"], ["variance"])] == ["50% or 95%", "95%"]
    fits = {run.name: run.answers["alpha"].frame for run in (one, two)}
    fits["one"]["confidence_level"] = 0.5
    assert "with 50% or 95% intervals (ols" in alpha_table(fits).caption
    caption = runs_table(runs).caption
    assert "each run with 50% or 95% intervals" in caption
    assert "over prompts, with 95% intervals" in caption
    # What an answer states goes before the experiment, which a copy of the folder may lack.
    one.answers["variance"].about["confidence_level"] = 0.8
    compared = several_tables(runs, FiguresSection())
    assert "in each run, 80% or 95% intervals over" in compared["variance"].caption
    assert "over prompts, with 80% or 95% intervals" in compared["runs"].caption
