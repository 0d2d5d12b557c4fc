"""Files of state values, and the completions that they belong to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import StateValues, read_state_values, with_state_values
from gradstats.rollouts.table import Rollouts


def table(rewards=(1.0, 0.0)):
    return Rollouts.from_sequences([[5], [5]], [[1, 2], [3]], rewards=list(rewards), prompt_ids=["a", "b"])


def test_values_are_read_as_they_were_written_and_find_their_completions(tmp_path):
    values = StateValues.of(table(), [np.array([0.5, np.nan]), np.array([0.25])], {"k": 2})
    values.to_parquet(tmp_path / "values.parquet")
    found = read_state_values(tmp_path / "values.parquet")
    assert found.metadata == {"k": 2}
    for row, expected in zip(found.for_rollouts(table().select([1, 0])), ([0.25], [0.5, np.nan]), strict=True):
        np.testing.assert_array_equal(row, expected)
    both = StateValues.concatenate([found, found])
    assert len(both.values) == len(both.completions) == 4


def test_other_completions_are_refused(tmp_path):
    values = StateValues.of(table(), [np.zeros(2), np.zeros(1)], {})
    with pytest.raises(ValueError, match="completion 0 of prompt 'b' had another reward"):
        values.for_rollouts(table((1.0, 1.0)))
    longer = Rollouts.from_sequences([[5]], [[1, 2, 3]], rewards=[1.0], prompt_ids=["a"])
    with pytest.raises(ValueError, match="another number of tokens"):
        values.for_rollouts(longer)
    with pytest.raises(ValueError, match="completion 0 of prompt 'c' has none"):
        values.for_rollouts(Rollouts.from_sequences([[5]], [[1]], rewards=[1.0], prompt_ids=["c"]))


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "values.parquet"
    StateValues.of(table(), [np.zeros(2), np.zeros(1)], {}).to_parquet(path)
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="values\\.parquet"):
        read_state_values(path)
    table().to_parquet(tmp_path / "rollouts.parquet")
    with pytest.raises(ValueError, match="holds no state values"):
        read_state_values(tmp_path / "rollouts.parquet")


def test_shards_without_their_plan_are_left_out_with_a_warning(tmp_path):
    rollouts = table()
    measured = Measurement(rollouts, pd.DataFrame({"all": [1.0, 1.0]}), None, *([[np.zeros(2), np.zeros(1)]] * 4))
    values = StateValues.of(rollouts, [np.zeros(2), np.zeros(1)], {})
    values.to_parquet(tmp_path / "shard-00000.parquet")
    with pytest.warns(
        UserWarning, match=r"are left out \(their plan\.json is missing\): `gradstats run` makes them again"
    ):
        assert with_state_values(measured, tmp_path).values is None
