"""Every table of a run as LaTeX."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from saved_runs import save_run

from gradstats.report.latex import Layout
from gradstats.report.run_tables import layout_for, left_out, run_tables, write_run_tables
from gradstats.report.saved_results import read_results
from gradstats.report.tables import Table

COMMITTED = Path(__file__).parents[2] / "figures"


@pytest.fixture(scope="module")
def tables():
    return run_tables(read_results(COMMITTED / "embedded_values"))


def test_a_run_has_a_table_of_each_result(tables):
    assert set(tables) == {
        "variance", "alpha", "allocation", "length_bins", "success_bins", "ratios", "ratio_clipping", "group_sizes",
        "alpha_by_block", "proxy_quality", "critic",
    }  # fmt: skip
    added = run_tables(read_results(COMMITTED / "embedded"))
    assert {"equivalent_group_size", "optimal_baselines", "curve_length_weighted_loo_true_alpha"} <= set(added)
    equivalent = added["equivalent_group_size"].caption
    assert "over n = 96 prompts. Each estimator with N = 4 completions per prompt." in equivalent
    assert len({table.label for table in tables.values()}) == len(tables)
    assert tables["alpha_by_block"].label == "tab:alpha-by-block"


def test_numbers_are_those_of_the_csv(tables):
    frame = pd.read_csv(COMMITTED / "embedded_values" / "allocation.csv")
    row = tables["allocation"].columns["relative noise"][3]
    assert row == tuple(frame.loc[3, ["relative_noise", "relative_noise_low", "relative_noise_high"]])
    blocks = pd.read_csv(COMMITTED / "embedded_values" / "alpha_by_block.csv")
    assert tables["alpha_by_block"].columns["α"][0][0] == pytest.approx(blocks["alpha"][0], rel=1e-12)
    assert "95% intervals" in tables["length_bins"].caption
    tokens = pd.read_csv(COMMITTED / "embedded_values" / "length_scaling.csv")["length"].sum()
    assert f"{tokens:,} completion tokens" in tables["allocation"].caption


def test_every_table_is_written_at_its_width(tables, tmp_path):
    paths = write_run_tables(tables, tmp_path, Layout("icml", "half"))
    assert [path.name for path in paths] == [f"{name}.tex" for name in tables]
    for path in paths:
        assert "icml's half column, 3.25 in" in path.read_text()
    # Again, at another width, and not over a file of the user's.
    write_run_tables(tables, tmp_path, Layout("icml", "full"))
    assert r"\begin{table*}" in paths[0].read_text()
    paths[-1].write_text("mine")
    with pytest.raises(FileExistsError, match=r"exists and is not a table that gradstats wrote"):
        write_run_tables(tables, tmp_path, Layout("icml", "half"))
    assert r"\begin{table*}" in paths[0].read_text()


def test_columns_are_asked_of_the_tables_that_have_them(tables):
    asked = Layout("icml", "half", columns=("cosine", "noise_to_signal"))
    assert layout_for(tables["variance"], asked).columns == ("cosine",)
    assert layout_for(tables["allocation"], asked).columns == ("noise_to_signal",)
    assert layout_for(tables["critic"], asked).columns == ()
    assert left_out(tables["variance"], layout_for(tables["variance"], asked)) == [
        heading for heading in tables["variance"].columns if heading != "cosine"
    ]
    with pytest.raises(ValueError, match="--columns cosin: no table of the run has such a column, only"):
        write_run_tables(tables, Path("nowhere"), Layout(columns=("cosin",)))


def test_tables_without_the_columns_of_this_version_are_left_out(tmp_path):
    save_run(tmp_path / "run")
    found = run_tables(read_results(tmp_path / "run"))
    assert {"variance", "alpha", "group_sizes"} <= set(found)
    assert not {"length_bins", "equivalent_group_size"} & set(found)
    assert all(isinstance(table, Table) for table in found.values())
    assert any(", N = 2" in name for name in found["group_sizes"].rows)


def test_ratios_of_one_policy_are_not_rounding_errors(tables):
    headings, rows = tables["ratios"].cells("latex")
    everything = rows[0][headings.index("variance ($\\times 10^{-9}$)")]
    assert everything == "$< 1$"
    on_policy = run_tables(read_results(COMMITTED / "embedded"))["ratios"]
    for table in (tables["ratios"], on_policy):
        headings, rows = table.cells("latex")
        assert {row[headings.index("mean")] for row in rows} == {"$1$"}


def test_rows_are_those_of_the_estimators_asked_for_under_their_names(tables):
    run = read_results(COMMITTED / "embedded_values")
    labels = run.variance["estimator"].tolist()
    style = run.figure_style.model_copy(update={"estimators": [labels[3], labels[0]], "labels": {labels[3]: "ours"}})
    found = run_tables(run, style)
    assert found["variance"].rows[0] == "ours"
    assert len(found["variance"].rows) == 2
    assert found["variance"].source["estimator"].tolist() == [labels[3], labels[0]]
    assert all(not row.startswith("recipe:") for row in tables["ratio_clipping"].rows)
    matched = [value for value, _, _ in run_tables(run, by_value=True)["variance"].columns["matched ratio"]]
    known = [value for value in matched if value == value]
    assert known == sorted(known)
    assert len(known) > 2
    assert matched[: len(known)] == known


def test_a_learned_baseline_and_a_published_one_are_told_apart():
    rows = run_tables(read_results(COMMITTED / "embedded"))["optimal_baselines"].rows
    assert "RLOO (published)" in rows
    assert rows[0].startswith("learned exponent: α 0.43 [−0.0713")
