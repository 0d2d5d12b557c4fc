"""Finished parts of a long command, kept until what it makes is whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradstats.system.files import remove_partials, remove_path, to_json, write_json


class KeptParts:
    """A folder of finished parts, which a later call with the same settings goes on from.

    Args:
        folder: where they are kept; made when it is not there.
        settings: everything that decides what the parts hold.

    Raises:
        ValueError: when the folder holds parts made with other settings (the first is named), or something else.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        described = self.folder / "settings.json"
        wanted = json.loads(to_json(settings))
        if described.exists():
            made = json.loads(described.read_text(encoding="utf-8"))
            differing = [name for name in {**made, **wanted} if made.get(name) != wanted.get(name)]
            if differing:
                raise ValueError(
                    f"{self.folder} holds parts of an unfinished command with another {differing[0]}: finish that one, "
                    "or remove the folder"
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty and holds no parts of a command: choose another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partials(self.folder)
        write_json(described, wanted)

    def path(self, number: int, suffix: str = "") -> Path:
        """Where part ``number`` is kept."""
        return self.folder / f"part-{number:05d}{suffix}"


def parts_folder(out: Path) -> Path:
    """Where a command keeps its parts until ``out`` is written."""
    return out.with_name(f"{out.name}.parts")


def remove_parts(out: Path) -> None:
    """Remove the parts of what has been written."""
    remove_path(parts_folder(out))


def digest(data: Any) -> str:
    """A fingerprint of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()
