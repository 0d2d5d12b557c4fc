"""Tables that a command adds to a run."""

import json

import pandas as pd
import pytest

from gradstats.report.saved_results import read_added, read_frame, save_frame


def curve(value=1.0):
    frame = pd.DataFrame({"value": [0.0, value], "ratio": [1.0, 0.5]})
    frame.attrs |= {"curve": "kimi", "parameter": "tau", "minimiser": float("nan")}
    return frame


def test_a_frame_comes_back_with_its_attributes(tmp_path):
    stem = tmp_path / "tables" / "curve_kimi_tau"
    table, about = save_frame(curve(), stem)
    assert json.loads(about.read_text())["minimiser"] is None
    again = read_frame(table)
    pd.testing.assert_frame_equal(again, curve(), check_dtype=False)
    assert again.attrs["parameter"] == "tau"
    assert list(read_added(tmp_path)) == ["curve_kimi_tau"]


def test_other_numbers_replace_only_on_request(tmp_path):
    save_frame(curve(), tmp_path / "curve_a")
    save_frame(curve(), tmp_path / "curve_a", overwrite=False)
    with pytest.raises(FileExistsError, match="other numbers"):
        save_frame(curve(2.0), tmp_path / "curve_a", overwrite=False)
    save_frame(curve(2.0), tmp_path / "curve_a")
    assert read_frame(tmp_path / "curve_a.csv")["value"][1] == 2.0


def test_files_of_the_user_stay(tmp_path):
    (tmp_path / "curve_a.csv").write_text("mine\n1\n")
    with pytest.raises(FileExistsError, match="an earlier table of this command"):
        save_frame(curve(), tmp_path / "curve_a")
    (tmp_path / "curve_b.json").write_text("{}")
    with pytest.raises(FileExistsError, match="the settings of an earlier table"):
        save_frame(curve(), tmp_path / "curve_b")


def test_a_broken_file_is_named(tmp_path):
    table, about = save_frame(curve(), tmp_path / "curve_a")
    about.write_text("{")
    with pytest.raises(ValueError, match=r"curve_a\.csv cannot be read"):
        read_frame(table)
