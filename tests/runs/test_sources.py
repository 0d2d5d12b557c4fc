"""Inputs of the commands, read from a path."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gradstats.measurement.storage import read_measurement
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.analysis import load_points


def test_a_run_directory_and_its_folders_give_the_same(finished):
    run = finished.run
    rollouts = read_rollouts(run.path)
    assert len(rollouts) == len(read_rollouts(run.rollouts)) == 24
    assert len(read_rollouts(run.rollouts / "shard-00000.parquet")) == 6
    measured = read_measurement(run.path)
    np.testing.assert_array_equal(measured.sq_norms, read_measurement(run.measurement).sq_norms)
    np.testing.assert_array_equal(load_points(run.path)["measured"].sq_norms, measured.sq_norms)


@pytest.mark.parametrize("load", [read_rollouts, read_measurement])
def test_a_half_regraded_run_is_refused(tmp_path, load):
    (tmp_path / "regraded").mkdir()
    (tmp_path / "regraded" / "pending.json").write_text("{}")
    with pytest.raises(ValueError, match=re.escape(f"scoring {tmp_path} again was interrupted: finish it with")):
        load(tmp_path)
