"""How far the cells of a sweep lie apart, paired over prompts."""

from __future__ import annotations

import pandas as pd
import pytest
from saved_runs import saved_sweep
from scipy import stats

import gradstats as gs
from gradstats.config.sections import FiguresSection
from gradstats.report.sweeps import write_sweep_results
from gradstats.system.files import read_csv, read_json, write_json


def points_of(folder, cell):
    return pd.read_csv(folder / cell / "tables" / "length_scaling.csv")


def test_each_pair_of_cells_has_the_differences_of_its_prompts(tmp_path):
    folder = saved_sweep(tmp_path / "sweep", temperatures=(0.6, 0.8, 1.0))
    frame = gs.read_sweep(folder).differences()
    pairs = frame[["cell", "minus"]].drop_duplicates().to_numpy().tolist()
    assert pairs == [[f"temperature={a}", f"temperature={b}"] for a, b in ((0.8, 0.6), (1.0, 0.6), (1.0, 0.8))]
    assert frame["n_prompts"].unique().tolist() == [15]
    rows = frame[(frame["cell"] == "temperature=1.0") & (frame["minus"] == "temperature=0.8")].set_index("quantity")
    one, other = points_of(folder, "temperature=1.0"), points_of(folder, "temperature=0.8")
    columns = ["difference", "difference_low", "difference_high"]
    for name, column in (("mean_length", "length"), ("mean_reward", "reward")):
        each = (one.groupby("prompt_id")[column].mean() - other.groupby("prompt_id")[column].mean()).to_numpy()
        low, high = stats.t.interval(0.95, 14, each.mean(), stats.sem(each))
        assert rows.loc[name, columns].tolist() == pytest.approx([each.mean(), low, high])
    alpha = gs.alpha_difference(one, other)
    assert rows.loc["alpha", columns].tolist() == [alpha.difference, *alpha.confidence_interval()]


def test_of_many_cells_each_is_compared_with_the_first(tmp_path):
    temperatures = [round(0.5 + 0.1 * at, 1) for at in range(13)]
    frame = gs.read_sweep(saved_sweep(tmp_path / "sweep", temperatures=temperatures)).differences()
    assert frame["minus"].unique().tolist() == ["temperature=0.5"]
    assert frame["cell"].nunique() == 12


def test_cells_with_other_prompts_or_another_line_are_not_paired(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    alpha = folder / "temperature=1.0" / "alpha.json"
    write_json(alpha, read_json(alpha) | {"method": "theil_sen"})
    assert set(gs.read_sweep(folder).differences()["quantity"]) == {"mean_length", "mean_reward"}
    table = folder / "temperature=1.0" / "tables" / "length_scaling.csv"
    table.write_text(table.read_text().replace("p3,", "another,"))
    assert gs.read_sweep(folder).differences().empty


def test_the_differences_are_written_and_gone_when_no_prompts_are_shared(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    style = FiguresSection(formats=["png"])
    assert folder / "cell_differences.csv" in write_sweep_results(gs.read_sweep(folder), style)
    written = read_csv(folder / "cell_differences.csv")
    pd.testing.assert_frame_equal(written, gs.read_sweep(folder).differences())
    table = folder / "temperature=1.0" / "tables" / "length_scaling.csv"
    table.write_text(table.read_text().replace("p3,", "another,"))
    write_sweep_results(gs.read_sweep(folder), style)
    assert not (folder / "cell_differences.csv").exists()


def test_a_table_of_the_users_is_not_replaced(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    (folder / "cell_differences.csv").write_text("mine\n1\n")
    with pytest.raises(FileExistsError, match="is not the table of a sweep's paired differences"):
        write_sweep_results(gs.read_sweep(folder), FiguresSection(formats=["png"]))
    assert (folder / "cell_differences.csv").read_text() == "mine\n1\n"
