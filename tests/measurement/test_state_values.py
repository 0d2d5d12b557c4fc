"""State values find their completions, and their files are read as they were written or refused."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats.measurement.state_values import StateValues, read_state_values, stored_values
from gradstats.rollouts.table import Rollouts

ROLLOUTS = Rollouts.from_sequences([[5], [5]], [[1, 2], [3]], rewards=[1.0, 0.0], prompt_ids=["a", "b"])
VALUES = StateValues.of(ROLLOUTS, [np.zeros(2), np.zeros(1)], {})


def test_values_are_read_as_they_were_written_and_find_their_completions(tmp_path):
    values = StateValues.of(ROLLOUTS, [np.array([0.5, np.nan]), np.array([0.25])], {"k": 2})
    values.to_parquet(tmp_path / "values.parquet")
    found = read_state_values(tmp_path / "values.parquet")
    assert found.metadata == {"k": 2}
    for row, expected in zip(found.for_rollouts(ROLLOUTS.select([1, 0])), ([0.25], [0.5, np.nan]), strict=True):
        np.testing.assert_array_equal(row, expected)
    both = StateValues.concatenate([found, found])
    assert len(both.values) == len(both.completions) == 4


@pytest.mark.parametrize(
    ("completions", "rewards", "prompts", "message"),
    [
        ([[1, 2], [3]], [1.0, 1.0], ["a", "b"], "completion 0 of prompt 'b' had another reward"),
        ([[1, 2, 3]], [1.0], ["a"], "completion 0 of prompt 'a' has another number of tokens"),
        ([[1]], [1.0], ["c"], "completion 0 of prompt 'c' has none"),
    ],
)
def test_other_completions_are_refused(completions, rewards, prompts, message):
    others = Rollouts.from_sequences([[5]] * len(prompts), completions, rewards=rewards, prompt_ids=prompts)
    with pytest.raises(ValueError, match=message):
        VALUES.for_rollouts(others)


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "values.parquet"
    VALUES.to_parquet(path)
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="values\\.parquet"):
        read_state_values(path)
    ROLLOUTS.to_parquet(tmp_path / "rollouts.parquet")
    with pytest.raises(ValueError, match="holds no state values"):
        read_state_values(tmp_path / "rollouts.parquet")


def test_shards_without_their_plan_are_left_out_with_a_warning(tmp_path):
    VALUES.to_parquet(tmp_path / "shard-00000.parquet")
    reason = r"are left out \(their plan\.json is missing\): `gradstats run` makes them again"
    with pytest.warns(UserWarning, match=reason):
        assert stored_values(tmp_path, ROLLOUTS) == {}
