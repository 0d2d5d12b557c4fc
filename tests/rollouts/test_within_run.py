"""Where a run keeps what was sampled and measured."""

from __future__ import annotations

import pytest

from gradstats.rollouts.table import PENDING_REWARDS, part_of_run


@pytest.mark.parametrize("part", ["rollouts", "measurement"])
def test_a_part_is_found_from_the_run_and_from_itself(tmp_path, part):
    (tmp_path / "run" / part).mkdir(parents=True)
    assert part_of_run(tmp_path / "run", part) == tmp_path / "run" / part
    assert part_of_run(tmp_path / "run" / part, part) == tmp_path / "run" / part
    assert part_of_run(tmp_path, part) == tmp_path


@pytest.mark.parametrize("part", ["rollouts", "measurement"])
def test_neither_is_read_while_rewards_are_pending(tmp_path, part):
    (tmp_path / part).mkdir()
    (tmp_path / PENDING_REWARDS).parent.mkdir()
    (tmp_path / PENDING_REWARDS).write_text("{}")
    for folder in (tmp_path, tmp_path / part):
        with pytest.raises(ValueError, match="again was interrupted: finish it with `gradstats regrade"):
            part_of_run(folder, part)
