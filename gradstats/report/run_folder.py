"""Which folder is a run directory, and who may write into it: one process at a time, and never through links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradstats.report.recorded_experiment import is_recorded_experiment
from gradstats.system.lock import only_writer
from gradstats.system.outputs import refuse_links
from gradstats.system.shards import PLAN


def is_run_directory(path: Path) -> bool:
    """Return whether a folder is a run directory: one with an ``experiment.yaml`` that a run recorded."""
    recorded = path / "experiment.yaml"
    return recorded.is_file() and ((path / "rollouts" / PLAN).exists() or is_recorded_experiment(recorded))


def enclosing_run(path: Path) -> Path | None:
    """Return the run directory that a path is or lies in, also through links; None where it lies in none."""
    places = (path, *path.absolute().parents, *path.resolve().parents)
    return next((folder for folder in places if is_run_directory(folder)), None)


@contextmanager
def writing_into(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of the run directory that a path is or lies in; nothing is locked where it lies in none.

    Args:
        path: the file or folder to be written.

    Raises:
        LockedError: when another process works on the run (:func:`gradstats.system.lock.only_writer`).
        ValueError: when the run contains symbolic links (:func:`gradstats.system.outputs.refuse_links`).
    """
    run = enclosing_run(Path(path))
    if run is None:
        yield
        return
    with only_writer(run):
        refuse_links(run)
        yield


def refuse_inside_run(out: Path, *, source: Path | None = None) -> None:
    """Refuse to write a result over the files of a run, which belong together, or while a process works on the run.

    Args:
        out: where the result is to be written.
        source: the run directory that the result is about, in which it may lie; None where there is none.

    Raises:
        FileExistsError: when ``out`` is a file or folder of another run directory, or the directory itself.
        LockedError, ValueError: as :func:`writing_into`.
    """
    run = enclosing_run(out)
    if run is not None and os.path.lexists(out) and (source is None or run.resolve() != source.resolve()):
        raise FileExistsError(f"{out} belongs to the run {run}: choose another path (--out)")
    with writing_into(out):
        pass
