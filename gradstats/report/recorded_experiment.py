"""The ``experiment.yaml`` of a run directory: the resolved settings, with a checksum in its last line."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gradstats.config.experiment import Experiment, read_experiment
from gradstats.system.checksums import changed_sentence
from gradstats.system.files import atomic_path

_CHECKSUM = "# sha256 of the lines above, which record what was run: "


def write_recorded_experiment(path: Path, settings: str) -> None:
    """Record a run's settings.

    Args:
        path: the file.
        settings: the resolved experiment as YAML.
    """
    with atomic_path(path) as partial:
        partial.write_text(f"{settings}{_CHECKSUM}{_sha256(settings)}\n", encoding="utf-8")


def read_recorded_experiment(path: Path) -> Experiment:
    """Read a run's settings; files of earlier versions have no checksum.

    Raises:
        ValueError: when the file has changed since it was written, or does not hold an experiment.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(changed_sentence(path)) from error
    settings, line, checksum = text.rpartition(_CHECKSUM)
    nameless = not line and re.search(r"[0-9a-f]{64}\s*\Z", text)  # a checksum whose words have changed
    if nameless or (line and checksum.strip() != _sha256(settings)):
        raise ValueError(changed_sentence(path))
    return read_experiment(path)


def is_recorded_experiment(path: Path) -> bool:
    """Whether a file was written by :func:`write_recorded_experiment`."""
    return _CHECKSUM.encode() in path.read_bytes()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
