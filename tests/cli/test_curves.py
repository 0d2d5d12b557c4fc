"""The command on curves."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats as gs
from gradstats.cli.statistics import parameter_values
from gradstats.system.files import write_json


def test_the_table_the_sentence_and_the_files(monkeypatch, capsys, measured, tmp_path):
    code, out, err = run(
        monkeypatch, capsys, "curve", measured, "length_weighted(loo=True)", "alpha=0:2:5", "--out", tmp_path
    )
    assert code == 0, err
    assert "length_weighted(loo=True) has its lowest variance at matched signal at alpha = " in out
    name = "curve_length_weighted_loo_true_alpha"
    assert (tmp_path / "figures" / f"{name}.pdf").is_file()
    expected = gs.variance_curve(
        gs.read_measurement(measured), "length_weighted(loo=True)", "alpha", [0.0, 0.5, 1.0, 1.5, 2.0]
    ).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "tables" / f"{name}.csv"), expected, check_dtype=False)
    about = json.loads((tmp_path / "tables" / f"{name}.json").read_text())
    assert about["minimiser"] == pytest.approx(expected.attrs["minimiser"])


def test_as_json_with_options(monkeypatch, capsys, measured):
    words = ["curve", measured, "rloo", "group_size=2,4", "--json", "--reference", "reinforce"]
    code, out, _ = run(monkeypatch, capsys, *words)
    found = json.loads(out)
    assert code == 0
    assert (found["curve"], found["parameter"], found["reference"]) == ("rloo", "group_size", "reinforce")
    assert [row["value"] for row in found["rows"]] == [2.0, 4.0]


def test_values_are_a_range_or_a_list():
    name, values = parameter_values("tau=0.5,2")
    assert (name, list(values)) == ("tau", [0.5, 2.0])
    np.testing.assert_allclose(parameter_values("alpha=0:2:41")[1], np.linspace(0, 2, 41))


@pytest.mark.parametrize("words", ["alpha", "alpha=", "alpha=1", "alpha=0:1", "alpha=0:1:x", "=0:1:3", "alpha=0:1:1"])
def test_other_words_are_refused(words):
    with pytest.raises(ValueError, match="cannot be read as a parameter with values: write alpha=0:2:41"):
        parameter_values(words)


def test_an_unknown_parameter_is_refused(monkeypatch, capsys, measured):
    code, _, err = run(monkeypatch, capsys, "curve", measured, "length_weighted", "alfa=0:1:3")
    assert code == 1
    assert "has no parameter 'alfa': known are alpha" in err


def test_learned_baselines_are_written_and_printed(monkeypatch, capsys, measured, tmp_path):
    code, out, err = run(
        monkeypatch, capsys, "optimal-baselines", measured, "--n-resamples", "8", "--out", tmp_path / "found"
    )
    assert code == 0, err
    assert "learned shift: delta " in out
    assert "The best learned baseline is the " in out
    table = pd.read_csv(tmp_path / "found" / "tables" / "optimal_baselines.csv")
    expected = gs.optimal_baselines(gs.read_measurement(measured), n_resamples=8).to_frame()
    np.testing.assert_allclose(table["ratio_to_learned"], expected["ratio_to_learned"])
    assert (tmp_path / "found" / "figures" / "optimal_baselines.pdf").is_file()


@pytest.fixture
def incomplete(measured, tmp_path):
    """A run directory of which one of two shards was measured."""
    folder = tmp_path / "run" / "measurement"
    folder.mkdir(parents=True)
    shutil.copytree(measured, folder / "shard-00000")
    write_json(folder / "plan.json", {"n_shards": 2})
    return folder.parent


@pytest.mark.parametrize(
    "words", [("curve", "asymmetric(loo=True)", "delta=-0.5,0"), ("optimal-baselines", "--n-resamples", "8")]
)
def test_an_incomplete_run_is_told_of_and_keeps_no_results(monkeypatch, capsys, incomplete, tmp_path, words):
    words = [words[0], incomplete, *words[1:], "--partial"]
    before = sorted(incomplete.rglob("*"))
    for more in ([], ["--out", incomplete]):
        code, _, err = run(monkeypatch, capsys, *words, *more)
        assert code == 1
        assert "with --partial nothing is written into the run" in err.replace("\n", " ")
    code, _, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "found")
    assert code == 0, err
    assert "1 of 2 shards are missing" in err.replace("\n", " ")
    assert list((tmp_path / "found" / "tables").glob("*.csv"))
    assert sorted(incomplete.rglob("*")) == before
