"""Where a run directory keeps what was sampled and measured."""

from __future__ import annotations

from pathlib import Path

#: Within a run: new rewards that are still to be written into its shards; then some hold old rewards, some new ones.
PENDING_REWARDS = Path("regraded", "pending.json")


def part_of_run(folder: Path, part: str) -> Path:
    """Return the part of a run directory, "rollouts" or "measurement"; any other folder is returned unchanged.

    Raises:
        ValueError: when scoring the completions of the run again was interrupted.
    """
    run = folder.parent if folder.name == part else folder
    if (run / PENDING_REWARDS).exists():
        raise ValueError(f"scoring {run} again was interrupted: finish it with `gradstats regrade {run}`")
    inside = folder / part
    return inside if inside.is_dir() else folder
