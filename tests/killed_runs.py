"""Kill runs at chosen moments and resume them, each in a process of its own.

``python killed_runs.py EXPERIMENT FOLDER MOMENT:NUMBER …`` runs the experiment in FOLDER/MOMENT-NUMBER, kills it by
SIGKILL at that moment of its NUMBER-th write, and runs it again to the end. The processes are forked from this one,
which has imported everything, so that each costs what the run costs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

from gradstats.config.experiment import read_experiment
from gradstats.runs.pipeline import run_experiment
from gradstats.system import files

#: Half of a file is on the disk; all of it is, under its temporary name; it has just got its name.
MOMENTS = ("half", "written", "named")


def die() -> None:
    """End this process as if the power had gone: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment: str, number: int) -> None:
    """Let this process be killed at a moment of its ``number``-th write."""
    sync, writes = files._sync, []
    give_name = files._give_name

    def counted_sync(partial: Path) -> None:
        writes.append(partial)
        if moment == "half" and len(writes) == number:
            largest = max((path for path in (partial, *partial.rglob("*")) if path.is_file()), key=_size)
            os.truncate(largest, _size(largest) // 2)
            die()
        sync(partial)

    def counted_name(partial: Path, *where: object) -> None:
        now = len(writes) == number
        if now and moment == "written":
            die()
        give_name(partial, *where)
        if now and moment == "named":
            die()

    files._sync = counted_sync
    files._give_name = counted_name


def _size(path: Path) -> int:
    return path.stat().st_size


def in_a_fork(action: Callable[[], None]) -> int:
    """Do something in a forked process; its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(experiment_file: str, folder: str, *moments: str) -> None:
    """Print for each moment how the killed run and the one after it ended."""
    mpl.use("Agg")
    experiment = read_experiment(Path(experiment_file))
    for text in moments:
        moment, _, number = text.partition(":")
        out = Path(folder, f"{moment}-{number}")

        def killed(moment: str = moment, number: str = number, out: Path = out) -> None:
            kill_at(moment, int(number))
            run_experiment(experiment, out, progress=False)

        first = in_a_fork(killed)
        print(out.name, first, in_a_fork(lambda out=out: run_experiment(experiment, out, progress=False)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
