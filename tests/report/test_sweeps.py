"""The joined results of a sweep, from saved numbers."""

import json

import numpy as np
import pandas as pd
import pytest
from saved_runs import change_frame, forget, save_answer, saved_answer, saved_sweep
from scipy import stats

import gradstats as gs
from gradstats.config.sections import FiguresSection
from gradstats.report.sweeps import draw_sweep, write_sweep_results
from gradstats.system.files import read_csv


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
    alpha = gs.stats.alpha_difference(one, other)
    assert rows.loc["alpha", columns].tolist() == [alpha.difference, *alpha.confidence_interval()]


def test_of_many_cells_each_is_compared_with_the_first(tmp_path):
    temperatures = [round(0.5 + 0.1 * at, 1) for at in range(13)]
    frame = gs.read_sweep(saved_sweep(tmp_path / "sweep", temperatures=temperatures)).differences()
    assert frame["minus"].unique().tolist() == ["temperature=0.5"]
    assert frame["cell"].nunique() == 12


def with_another_prompt(cell):
    change_frame(cell, "length_scaling", lambda points: points.replace({"prompt_id": {"p3": "another"}}))


def test_cells_with_other_prompts_or_another_line_are_not_paired(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    cell = folder / "temperature=1.0"
    save_answer(cell, saved_answer(cell, "alpha"), method="theil_sen")
    assert set(gs.read_sweep(folder).differences()["quantity"]) == {"mean_length", "mean_reward"}
    with_another_prompt(folder / "temperature=1.0")
    assert gs.read_sweep(folder).differences().empty


def test_the_differences_are_written_and_gone_when_no_prompts_are_shared(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    style = FiguresSection(formats=["png"])
    assert folder / "cell_differences.csv" in write_sweep_results(gs.read_sweep(folder), style)
    written = read_csv(folder / "cell_differences.csv")
    pd.testing.assert_frame_equal(written, gs.read_sweep(folder).differences())
    with_another_prompt(folder / "temperature=1.0")
    write_sweep_results(gs.read_sweep(folder), style)
    assert not (folder / "cell_differences.csv").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [("cell_differences.csv", "a sweep's paired differences"), ("sweep.csv", "a sweep that gradstats wrote")],
)
def test_a_table_of_the_users_is_not_replaced(name, what, tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    (folder / name).write_text("mine\n1\n")
    with pytest.raises(FileExistsError, match=f"is not the table of {what}"):
        write_sweep_results(gs.read_sweep(folder), FiguresSection(formats=[]))
    assert (folder / name).read_text() == "mine\n1\n"


def test_one_row_for_each_cell_and_estimator(tmp_path):
    result = gs.read_sweep(saved_sweep(tmp_path / "sweep"))
    frame = result.to_frame()
    assert frame["cell"].tolist() == ["temperature=0.6"] * 4 + ["temperature=1.0"] * 4
    assert frame["sampling.temperature"].tolist() == [0.6] * 4 + [1.0] * 4
    assert frame["ratio"].tolist() == [1.0, 1.3, 0.93, 1.03] * 2
    assert frame.iloc[-1]["mean_length"] == pytest.approx(
        points_of(tmp_path / "sweep", "temperature=1.0").groupby("prompt_id")["length"].mean().mean()
    )
    alpha = json.loads((tmp_path / "sweep" / "temperature=1.0" / "alpha.json").read_text())
    assert frame.iloc[-1]["alpha_high"] == alpha["alpha_high"]


def test_cells_without_results_are_named(tmp_path):
    result = gs.read_sweep(saved_sweep(tmp_path / "sweep", missing=["temperature=0.6"]))
    assert result.missing == ["temperature=0.6"]
    assert set(result.to_frame()["cell"]) == {"temperature=1.0"}
    nothing = gs.read_sweep(saved_sweep(tmp_path / "none", missing=["temperature=0.6", "temperature=1.0"]))
    assert nothing.to_frame().empty
    assert write_sweep_results(nothing, FiguresSection()) == []


def test_cells_that_differ_in_what_the_sweep_does_not_vary_are_named(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    file = folder / "temperature=1.0" / "experiment.yaml"
    file.write_text(file.read_text().replace("max_new_tokens: 1500", "max_new_tokens: 8"))
    with pytest.warns(UserWarning, match=r"differ in sampling\.max_new_tokens, which the sweep does not vary"):
        gs.read_sweep(folder)


def test_a_cell_without_a_comparison_keeps_its_alpha(tmp_path):
    folder = saved_sweep(tmp_path / "sweep")
    forget(folder / "temperature=0.6", "variance")
    frame = gs.read_sweep(folder).to_frame()
    assert len(frame) == 5
    assert np.isfinite(frame.loc[0, "alpha"])
    assert pd.isna(frame.loc[0, "estimator"])


def test_one_figure_for_each_setting_that_takes_several_values(tmp_path):
    result = gs.read_sweep(saved_sweep(tmp_path / "sweep"))
    paths = draw_sweep(result.to_frame(), result.varied, tmp_path / "figures", FiguresSection(formats=["png"]))
    assert [path.name for path in paths] == ["sampling_temperature.png", "sampling_temperature.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not the folder of a sweep: create one with `gradstats run FILE"),
        ("[]", "holds a JSON list"),
        ('{"name": "x", "varied": [], "cells": [{"settings": {}}]}', "does not list the cells of a sweep"),
        *(
            (
                f'{{"name": "x", "varied": [], "cells": [{{"folder": "{one}", "settings": {{}}}}]}}',
                f"names the folder '{one}', w",
            )
            for one in ("../elsewhere", "..", "/tmp")
        ),
    ],
)
def test_what_is_not_a_sweep_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        gs.read_sweep(tmp_path)
