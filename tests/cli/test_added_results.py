"""What the commands that add results share: files in a folder, and none for a bare measurement."""

from __future__ import annotations

import pandas as pd
import pytest

from gradstats.cli.statistics import refuse_foreign_result, save_result

NAME = "curve_kimi_tau"


def curve():
    frame = pd.DataFrame({"value": [0.0, 1.0], "trace_cov": [1.0, 0.5]})
    frame.attrs |= {"curve": "kimi", "parameter": "tau"}
    return frame


def test_a_file_of_the_users_is_refused_before_the_work(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / f"{NAME}.csv").write_text("mine\n")
    with pytest.raises(FileExistsError, match="is not an earlier table of this command that gradstats wrote"):
        refuse_foreign_result(tmp_path, NAME, ["value", "trace_cov"])


def test_a_bare_measurement_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_foreign_result(None, NAME, ["value"])
    save_result(curve(), None, NAME, overwrite=False)
    assert not list(tmp_path.iterdir())
