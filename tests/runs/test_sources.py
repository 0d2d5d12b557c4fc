"""Inputs of the commands, read from a path."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from gradstats.runs.sources import load_measurement_of, load_points, load_rollouts_of


def test_a_run_directory_and_its_folders_give_the_same(finished):
    run = finished.run
    rollouts = load_rollouts_of(run.path)
    assert len(rollouts) == len(load_rollouts_of(run.rollouts)) == 24
    assert len(load_rollouts_of(run.rollouts / "shard-00000.parquet")) == 6
    measured = load_measurement_of(run.path)
    np.testing.assert_array_equal(measured.sq_norms, load_measurement_of(run.measurement).sq_norms)
    np.testing.assert_array_equal(load_points(run.path)["measured"].sq_norms, measured.sq_norms)


@pytest.mark.parametrize("load", [load_rollouts_of, load_measurement_of])
def test_a_half_regraded_run_is_refused(tmp_path, load):
    (tmp_path / "regraded").mkdir()
    (tmp_path / "regraded" / "pending.json").write_text("{}")
    with pytest.raises(ValueError, match=re.escape(f"scoring {tmp_path} again was interrupted: finish it with")):
        load(tmp_path)


def test_points_are_read_with_what_the_file_has(tmp_path):
    frame = pd.DataFrame({"length": [3, 5, 8], "sq_norm": [1.0, 2.0, 4.0]})
    frame.to_csv(tmp_path / "bare.csv", index=False)
    bare = load_points(tmp_path / "bare.csv")
    assert set(bare) == {"lengths", "sq_norms", "groups"}
    assert bare["groups"] is None
    np.testing.assert_array_equal(bare["lengths"], [3, 5, 8])
    np.testing.assert_array_equal(bare["sq_norms"], [1.0, 2.0, 4.0])
    # Prompts named by numbers stay names: "007" is not "7".
    frame.assign(prompt_id=["007", "7", "7"], truncated=[0, 1, 0]).to_csv(tmp_path / "full.csv", index=False)
    full = load_points(tmp_path / "full.csv")
    assert full["groups"].tolist() == ["007", "7", "7"]
    assert full["truncated"].tolist() == [False, True, False]


def test_points_that_do_not_exist_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.csv does not exist: give a CSV file, a measurement folder"):
        load_points(tmp_path / "absent.csv")
