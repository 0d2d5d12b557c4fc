"""Resumable shards: the numbered files of a long command, each written as soon as it is finished."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from gradstats.system.files import (
    PARTIAL,
    digest,
    holds_only,
    partials,
    read_json,
    remove_partials,
    remove_path,
    to_json,
    write_json,
)
from gradstats.system.lock import LOCK, only_writer

Content = TypeVar("Content")

#: The file that states how many shards a folder has, and which run they belong to.
PLAN = "plan.json"
#: Entry of a shard's metadata that states where it belongs: ``run``, ``settings`` and ``shard``, its number.
ORIGIN = "origin"
#: Entries of the metadata of results in which two calls with the same settings differ.
OF_THE_CALL = {"grading", "execution", "self_check", "token_self_check", "versions", "not_finite", ORIGIN}
_OTHER = {"run": "another run", "settings": "a run with other settings", "shard": "another place in this run"}
_NO_FAIR_SAMPLE = "shards are ordered by prompt length, so the existing ones are not a representative sample"


@dataclass(frozen=True)
class Shards(Generic[Content]):
    """A folder of numbered shards, of which a later call makes only those that are missing.

    A shard is complete or absent, so it is made exactly when its file does not exist.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> squares = Shards(folder, ".txt", Path.read_text, lambda text, path: path.write_text(text))
    >>> squares.make_missing(3, lambda number: str(number**2))
    >>> squares.finished(5), squares.read_all(3)
    ([0, 1, 2], ['0', '1', '4'])
    """

    folder: Path  # where the shards are
    suffix: str  # how their names end; empty where a shard is a folder
    read: Callable[[Path], Content]
    write: Callable[[Content, Path], object]
    # run and settings, which each shard records in its metadata with its number, and which are compared when it is
    # read; empty where shards record nothing, as those of earlier versions
    origin: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def resume(
        cls,
        folder: str | os.PathLike[str],
        settings: Mapping[str, object],
        suffix: str,
        read: Callable[[Path], Content],
        write: Callable[[Content, Path], object],
        *,
        stamped: bool = False,
    ) -> Iterator[Shards[Content]]:
        """Open a folder of shards for a command with the given settings, and create it where it does not exist.

        No other process can open it at the same time.
        """
        folder = Path(folder)
        recorded = folder / "settings.json"
        wanted = json.loads(to_json(settings))
        if folder.exists() and not holds_only(folder, LOCK, PARTIAL) and not recorded.exists():
            raise ValueError(f"{folder} is not empty and does not contain a command's shards: choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder):
            if recorded.exists():
                earlier = read_json(recorded)
                differing = [name for name in wanted if earlier.get(name) != wanted[name]]
                if differing:
                    raise ValueError(
                        f"{folder} holds shards of an unfinished command with another {differing[0]}: finish that "
                        "command, or remove the folder"
                    )
                wanted = earlier  # in the order in which the digest of its shards was made
            remove_partials(folder)
            write_json(recorded, wanted)
            yield cls(folder, suffix, read, write, {"run": digest(wanted)} if stamped else {})

    def path(self, number: int) -> Path:
        """Return where a shard is."""
        return shard_path(self.folder, number, self.suffix)

    def finished(self, n_shards: int) -> list[int]:
        """Return which of the first ``n_shards`` shards exist."""
        return [number for number in range(n_shards) if self.path(number).exists()]

    def missing(self, n_shards: int) -> list[int]:
        """Return which of the first ``n_shards`` shards do not exist."""
        return sorted(set(range(n_shards)) - set(self.finished(n_shards)))

    def make_missing(self, n_shards: int, make: Callable[[int], Content]) -> None:
        """Make the shards that do not exist yet, one after another, and write each as soon as it is made."""
        for number in self.missing(n_shards):
            self.write_one(number, make(number))

    def write_one(self, number: int, content: Content) -> None:
        """Write one shard."""
        self.write(self._with_origin(content, number), self.path(number))

    def is_made(self, number: int) -> bool:
        """Return whether a shard exists."""
        return self.path(number).exists()

    def read_one(self, number: int) -> Content:
        """Read one shard."""
        content: Any = self.read(self.path(number))
        if self.origin:
            _refuse_other_origin(content.metadata, self.path(number), {**self.origin, "shard": number})
        return content

    def read_all(self, n_shards: int) -> list[Content]:
        """Read the first ``n_shards`` shards, all of which must exist."""
        return [self.read_one(number) for number in range(n_shards)]

    def _with_origin(self, content: Any, number: int) -> Content:
        if not self.origin:
            return content
        return replace(content, metadata=content.metadata | {ORIGIN: {**self.origin, "shard": number}})


@dataclass(frozen=True)
class PlannedShards:
    """The shards of a folder by its plan."""

    paths: list[Path]
    numbers: list[int]
    origin: dict[str, object]  # the run and settings that each should state; empty for runs of earlier versions


class IncompleteRunError(ValueError):
    """Shards that a run has planned are missing."""


def planned_shards(
    folder: Path,
    suffix: str,
    *,
    plan_file: Path | None = None,
    partial: bool = False,
    unneeded: Collection[int] = (),
) -> PlannedShards | None:
    """Return the shards that a folder should hold by its ``plan.json``, or None where it has no plan.

    Those that are ``unneeded``, by their numbers, may be missing.
    """
    if (folder / "settings.json").exists() and not partial:
        raise IncompleteRunError(
            f"{folder} holds the finished shards of an unfinished command: repeat that command, and it continues from "
            "them (or read the existing shards with --partial)"
        )
    plan_file = folder / PLAN if plan_file is None else plan_file
    if not plan_file.exists():
        return None
    plan = read_json(plan_file)
    total = n_planned(plan, plan_file)
    paths = {number: shard_path(folder, number, suffix) for number in range(total)}
    paths = {number: path for number, path in paths.items() if path.exists() or number not in unneeded}
    total = len(paths)
    present = [number for number, path in paths.items() if path.exists()]
    if len(present) < total:
        first = next(path.name for path in paths.values() if not path.exists())
        what = f"{total - len(present)} of {total} shards are missing in {folder} (the first: {first})"
        if not partial:
            raise IncompleteRunError(
                f"{what}: repeat `gradstats run`, which makes the missing ones, or analyse the existing ones with "
                f"--partial; {_NO_FAIR_SAMPLE}"
            )
        warnings.warn(f"{what}: this is an analysis of the others; {_NO_FAIR_SAMPLE}", UserWarning, stacklevel=2)
    return PlannedShards([paths[number] for number in present], present, _origin(plan))


def read_origin(folder: Path) -> dict[str, object]:
    """Return the ``run`` and ``settings`` that the shards of a folder state by its plan; empty for earlier versions."""
    return _origin(read_json(folder / PLAN)) if (folder / PLAN).exists() else {}


def _origin(plan: Mapping[str, object]) -> dict[str, object]:
    return {name: plan[name] for name in ("run", "settings") if name in plan}


def n_planned(plan: Mapping[str, Any], path: Path) -> int:
    """Return how many shards a plan has."""
    try:  # version 0.1 recorded only the batches of each round
        return int(plan["n_shards"]) if "n_shards" in plan else sum(len(entry["batches"]) for entry in plan["rounds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not state how many shards there are: restore it from a copy") from error


def refuse_foreign_shard(
    metadata: Mapping[str, Any], path: Path, planned: PlannedShards | None, *, partial: bool = False
) -> None:
    """Refuse a shard that was made by another run, with other settings, or as another shard of its run."""
    if planned is not None and planned.origin:
        _refuse_other_origin(metadata, path, planned.origin | {"shard": planned.numbers[planned.paths.index(path)]})
    elif planned is None and ORIGIN in metadata and not partial:
        raise IncompleteRunError(
            f"{path} is one shard of a run, and {path.parent} has no {PLAN} that says how many there are: copy "
            "the whole folder of the run"
        )


def _refuse_other_origin(metadata: Mapping[str, Any], path: Path, expected: Mapping[str, object]) -> None:
    origin = metadata.get(ORIGIN)
    found = origin if isinstance(origin, dict) else {}
    for name, what in _OTHER.items():
        if name in expected and found.get(name) != expected[name]:
            raise ValueError(
                f"{path} does not belong here, it comes from {what}: put back the original shard, or remove this one, "
                "and repeat the command, which makes it again"
            )


def shard_path(folder: Path, number: int, suffix: str) -> Path:
    """Return where the shard of a number is."""
    return folder / f"shard-{number:05d}{suffix}"


def shards_folder(out: Path) -> Path:
    """Return where a command keeps its shards until ``out`` is written."""
    return out.with_name(f"{out.name}.parts")


def remove_shards(out: Path) -> None:
    """Remove the shards of a file or folder that has been written."""
    folder = shards_folder(out)
    for path in (folder / "settings.json", *partials(folder), *folder.glob("shard-*")):
        remove_path(path)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
