"""Resumable shards: the numbered files of a long command, each written as soon as it is finished."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from gradstats.system.files import remove_partials, remove_path, to_json, write_json
from gradstats.system.interrupts import finishing_current_shard

Content = TypeVar("Content")


@dataclass(frozen=True)
class Shards(Generic[Content]):
    """A folder of numbered shards, of which a later call makes only those that are missing.

    A shard exists whole or not at all, so what decides whether to make it is whether its file is there.

    Attributes:
        folder: where the shards are.
        suffix: how their names end; empty where a shard is a folder.
        read: reads one shard.
        write: writes one shard, whole or not at all.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> squares = Shards(folder, ".txt", Path.read_text, lambda text, path: path.write_text(text))
    >>> squares.make_missing(3, lambda number: str(number**2))
    >>> squares.finished(5), squares.read_all(3)
    ([0, 1, 2], ['0', '1', '4'])
    """

    folder: Path
    suffix: str
    read: Callable[[Path], Content]
    write: Callable[[Content, Path], object]

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike[str],
        settings: Mapping[str, object],
        suffix: str,
        read: Callable[[Path], Content],
        write: Callable[[Content, Path], object],
    ) -> Shards[Content]:
        """Open a folder of shards for a command with the given settings, and create it where it does not exist.

        Args:
            folder: where the shards are; it also records the settings.
            settings: everything that decides what the shards hold.
            suffix: as for the class.
            read: as for the class.
            write: as for the class.

        Raises:
            ValueError: when the folder holds shards made with other settings (the first is named), or something else.
        """
        folder = Path(folder)
        recorded = folder / "settings.json"
        wanted = json.loads(to_json(settings))
        if recorded.exists():
            earlier = json.loads(recorded.read_text(encoding="utf-8"))
            differing = [name for name in wanted if earlier.get(name) != wanted[name]]
            if differing:
                raise ValueError(
                    f"{folder} holds shards of an unfinished command with another {differing[0]}: finish that command, "
                    "or remove the folder"
                )
        elif folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no shards of a command: choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        remove_partials(folder)
        write_json(recorded, wanted)
        for old in folder.glob("part-*"):  # the name that shards of an unfinished command had up to version 0.1
            old.rename(folder / old.name.replace("part-", "shard-", 1))
        return cls(folder, suffix, read, write)

    def path(self, number: int) -> Path:
        """Where a shard is."""
        return self.folder / f"shard-{number:05d}{self.suffix}"

    def finished(self, n_shards: int) -> list[int]:
        """Which of the first ``n_shards`` shards exist."""
        return [number for number in range(n_shards) if self.path(number).exists()]

    def make_missing(
        self, n_shards: int, make: Callable[[int], Content], *, on_interrupt: Callable[[str], None] | None = None
    ) -> None:
        """Make the shards that do not exist yet, one after another, and write each as soon as it is made.

        Args:
            n_shards: how many shards there are in the end.
            make: makes the shard of a number.
            on_interrupt: where it is given, a first Ctrl-C waits until the current shard is written, and this is
                called with a sentence that says so; otherwise Ctrl-C stops at once.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
        """
        missing = sorted(set(range(n_shards)) - set(self.finished(n_shards)))
        waiting = nullcontext(_nothing) if on_interrupt is None else finishing_current_shard(on_interrupt)
        with waiting as stop_if_asked:
            for number in missing:
                self.write(make(number), self.path(number))
                stop_if_asked()

    def read_all(self, n_shards: int) -> list[Content]:
        """Read the first ``n_shards`` shards, all of which must exist."""
        return [self.read(self.path(number)) for number in range(n_shards)]


def shards_folder(out: Path) -> Path:
    """Where a command keeps its shards until ``out`` is written."""
    return out.with_name(f"{out.name}.parts")


def remove_shards(out: Path) -> None:
    """Remove the shards of a file or folder that has been written."""
    remove_path(shards_folder(out))


def digest(data: object) -> str:
    """Return a fingerprint of anything that JSON can hold.

    >>> digest([1, 2]) == digest((1, 2)) != digest([2, 1])
    True
    """
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _nothing() -> None:
    """No interrupt waits."""
