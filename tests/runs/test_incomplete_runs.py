"""Runs that lack shards, or hold those of others, are not analysed as if they were whole."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from gradstats.measurement.storage import read_measurement
from gradstats.rollouts.table import read_rollouts
from gradstats.system.files import write_json


@pytest.fixture
def path(finished, tmp_path):
    return shutil.copytree(finished.run.path, tmp_path / "run")


def test_missing_shards_are_refused_and_left_out_on_request(path):
    whole = read_measurement(path)
    shutil.rmtree(path / "measurement" / "shard-00003")
    os.unlink(path / "rollouts" / "shard-00001.parquet")
    with pytest.raises(ValueError, match=r"1 of 4 shards are missing in .*measurement \(the first: shard-00003\)"):
        read_measurement(path)
    with pytest.raises(ValueError, match=r"1 of 4 shards are missing in .*rollouts \(the first: shard-00001.parquet\)"):
        read_rollouts(path)
    with pytest.warns(UserWarning, match="this is an analysis of the others; shards are ordered by prompt length"):
        measured = read_measurement(path, partial=True)
    np.testing.assert_array_equal(measured.sq_norms, whole.sq_norms[:18])


def test_shards_that_belong_elsewhere_are_refused(path):
    measurement, rollouts = path / "measurement", path / "rollouts"
    shutil.copy(rollouts / "shard-00001.parquet", rollouts / "shard-00002.parquet")
    with pytest.raises(ValueError, match="shard-00002.parquet does not belong here, it comes from another place in"):
        read_rollouts(rollouts)
    shutil.rmtree(measurement / "shard-00002")
    shard = read_measurement(measurement / "shard-00001")
    own = shard.metadata["origin"] | {"shard": 2}
    for origin, sentence in (
        ({"run": "7"}, "it comes from another run"),
        ({"settings": "7"}, "it comes from a run with other settings"),
        (None, "it comes from another run"),
    ):
        shard.metadata["origin"] = None if origin is None else own | origin
        shard.save(measurement / "shard-00002", overwrite=True)
        with pytest.raises(ValueError, match=f"shard-00002 does not belong here, {sentence}"):
            read_measurement(path)


def test_rollouts_that_were_not_measured_are_refused(path):
    shutil.copy(path / "rollouts" / "shard-00001.parquet", path / "measurement" / "shard-00002" / "rollouts.parquet")
    with pytest.raises(
        ValueError, match=r"its rollouts\.parquet holds other completions than those that were measured"
    ):
        read_measurement(path)


def test_shards_without_their_plan_are_refused(path):
    (path / "rollouts" / "plan.json").unlink()
    (path / "measurement" / "plan.json").unlink()
    for read in (read_measurement, read_rollouts):
        with pytest.raises(ValueError, match=r"is one shard of a run, and .* has no plan\.json"):
            read(path)
        assert len(read(path, partial=True)) == 24
    write_json(path / "rollouts" / "plan.json", {"n_shards": "many"})
    with pytest.raises(ValueError, match=r"plan\.json does not state how many shards there are"):
        read_rollouts(path)


def test_shards_of_an_unfinished_command_are_refused(path):
    write_json(path / "rollouts" / "settings.json", {})
    with pytest.raises(ValueError, match="holds the finished shards of an unfinished command: repeat that command"):
        read_rollouts(path)
