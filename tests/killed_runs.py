"""Kill runs at chosen moments and resume them, each in a process of its own.

``python killed_runs.py EXPERIMENT FOLDER MOMENT:WRITE …`` runs the experiment in FOLDER/MOMENT-WRITE, kills it by
SIGKILL at that moment of the write, which is given by its number or as folder/file, and runs it again to the end. It
stops after a number that the run does not reach. The processes are forked from this one, which has imported everything,
so that each costs what the run costs.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_runs import leave_out_pictures, only_two_figures

from gradstats.config.experiment import Experiment, read_experiment
from gradstats.runs.pipeline import run_experiment
from gradstats.system import files

#: Half of a file is on the disk; all of it is, under its temporary name; it has just got its name.
MOMENTS = ("half", "written", "named")


#: Files with the times of a run.
_TIMED = {"manifest.json", "report.html"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a run but those with its times."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in _TIMED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def kill_and_resume(experiment: Experiment, folder: Path, moments: Sequence[str]) -> list[list[str]]:
    """Kill a run at each moment and resume it; for each, the name in ``runs``, and how the two calls ended."""
    printed = in_new_process(Path(__file__), experiment, folder, *moments)
    return [line.split() for line in printed if line.startswith(MOMENTS)]


def in_new_process(script: Path, experiment: Experiment, folder: Path, *words: str) -> list[str]:
    """Run ``python script EXPERIMENT FOLDER/runs words``; the lines that it prints."""
    (folder / "tiny.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    searched = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": searched, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "ignore", str(script), str(folder / "tiny.yaml"), str(folder / "runs"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stderr)  # for a test that fails
    assert done.returncode == 0
    return done.stdout.splitlines()


def die() -> None:
    """End this process as if the power had gone: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment: str, write: str) -> None:
    """Let this process be killed at a moment of its n-th write, or of that of a file, such as ``values/fitted``."""
    sync, writes = files._sync, []
    give_name = files._give_name

    def is_it() -> bool:
        if write.isdigit():
            return len(writes) == int(write)
        return f"{writes[-1].parent.name}/{writes[-1].name.lstrip('.')}".startswith(write)

    def counted_sync(partial: Path) -> None:
        writes.append(partial)
        if moment == "half" and is_it():
            largest = max((path for path in (partial, *partial.rglob("*")) if path.is_file()), key=_size)
            os.truncate(largest, _size(largest) // 2)
            die()
        sync(partial)

    def counted_name(partial: Path, *where: object) -> None:
        now = is_it()
        if now and moment == "written":
            die()
        give_name(partial, *where)
        if now and moment == "named":
            die()

    files._sync = counted_sync
    files._give_name = counted_name


def _size(path: Path) -> int:
    return path.stat().st_size


def in_a_fork(action: Callable[[], object]) -> int:
    """Do something in a forked process; its exit code, negative for a signal."""
    return exit_code(forked(action))


def exit_code(child: int) -> int:
    """Wait for a process; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(action: Callable[[], object]) -> int:
    """Begin to do something in a forked process; its id."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def main(experiment_file: str, folder: str, *moments: str) -> None:
    """Print for each moment how the killed run and the one after it ended."""
    experiment = read_experiment(Path(experiment_file))
    # The figures of the runs that these are compared with.
    (only_two_figures if experiment.figures.formats else leave_out_pictures)(pytest.MonkeyPatch())
    for text in moments:
        moment, _, write = text.partition(":")
        out = Path(folder, f"{moment}-{write.replace('/', '-')}")

        def killed(moment: str = moment, write: str = write, out: Path = out) -> None:
            kill_at(moment, write)
            run_experiment(experiment, out, progress=False)

        first = in_a_fork(killed)
        print(out.name, first, in_a_fork(lambda out=out: run_experiment(experiment, out, progress=False)), flush=True)
        if not first:  # the run has fewer writes
            break


if __name__ == "__main__":
    main(*sys.argv[1:])
