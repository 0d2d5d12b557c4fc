"""Several processes that make one run together: which shards each makes, and what it leaves for the whole."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradstats.system.files import read_json, write_json
from gradstats.system.lock import PART, is_running, part_lock

# Seconds that a part waits for one that is not running, which may be about to start.
_GRACE = 300.0
_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class RunPart:
    """One of several processes that make a run: every n-th batch and shard.

    Attributes:
        number: k, from 1.
        n_parts: n.
    """

    number: int
    n_parts: int

    @classmethod
    def of(cls, text: str) -> RunPart:
        """Read ``"k/n"``.

        Raises:
            ValueError: for anything else, or k outside 1 to n.

        >>> RunPart.of("2/8")
        RunPart(number=2, n_parts=8)
        """
        number, _, n_parts = text.partition("/")
        if not (number.isdecimal() and n_parts.isdecimal() and 1 <= int(number) <= int(n_parts)):
            raise ValueError(f"part is {text!r}: write k/n, for the k-th of n parts, as in 2/8")
        return cls(int(number), int(n_parts))

    def __str__(self) -> str:
        """Return ``"k/n"``."""
        return f"{self.number}/{self.n_parts}"

    def own(self, numbers: Iterable[int]) -> list[int]:
        """Return the shards that this part makes: k - 1, k - 1 + n, …"""
        return [number for number in numbers if number % self.n_parts == self.number - 1]

    def wait_for(self, folder: Path, missing: Callable[[], list[int]], say: Callable[[str], None]) -> bool:
        """Wait until the shards of the other parts are there, as long as these parts are running or may start.

        Args:
            folder: the run directory, in which running parts hold their locks.
            missing: returns the shards that are not there yet.
            say: called with a sentence when waiting begins.

        Returns:
            Whether all shards are there.
        """
        said, since = False, time.monotonic()
        while waiting := missing():
            others = {number % self.n_parts + 1 for number in waiting}
            if all(is_running(part_lock(folder, other, self.n_parts)) for other in others):
                since = time.monotonic()
            elif time.monotonic() - since > _GRACE:
                return False
            if not said:
                named = ", ".join(f"{other}/{self.n_parts}" for other in sorted(others))
                say(f"waiting for {len(waiting)} shards of the parts {named}")
                said = True
            time.sleep(_BETWEEN_LOOKS)
        return True

    def write_record(
        self, folder: Path, timings: Mapping[str, float], remarks: Sequence[str], execution: Mapping[str, object] | None
    ) -> None:
        """Leave what a part did for the manifest of the run, added to what it did in earlier calls.

        Args:
            folder: the run directory.
            timings: seconds of each step.
            remarks: the warnings of the steps.
            execution: how shards were made; None where this call made none.
        """
        path = folder / f"{PART}{self.number}-of-{self.n_parts}.json"
        earlier = read_json(path) if path.exists() else {"timings": {}, "remarks": []}
        names = dict.fromkeys([*earlier["timings"], *timings])
        summed = {name: round(earlier["timings"].get(name, 0.0) + timings.get(name, 0.0), 2) for name in names}
        write_json(
            path,
            {
                "part": str(self),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "timings": summed,
                "remarks": list(dict.fromkeys([*earlier["remarks"], *remarks])),
                "execution": earlier.get("execution") if execution is None else dict(execution),
            },
        )


def part_records(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return what the parts of a run have left, by file."""
    return {path: read_json(path) for path in sorted(folder.glob(f"{PART}*-of-*.json"))}
