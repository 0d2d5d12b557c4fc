"""Two parts of a run at once, in processes that are forked from this one; one is killed and started again.

``python parts_at_once.py EXPERIMENT FOLDER`` makes part 1/2 and part 2/2 in FOLDER at the same time, kills the second
in the middle of a shard that it measures, and starts it again while the first is still held back. It prints how the
three processes ended, and what a whole run said meanwhile.
"""

import sys
import time
from pathlib import Path

from killed_runs import exit_code, forked, in_a_fork, kill_at

from gradstats.config.experiment import read_experiment
from gradstats.runs import pipeline
from gradstats.runs.directory import RunPart
from gradstats.runs.pipeline import run_experiment, run_part
from gradstats.system.lock import LockedError


def main(experiment_file: str, folder: str) -> None:
    experiment, out = read_experiment(Path(experiment_file)), Path(folder)
    released = out.with_name("released")

    def make(part: str) -> None:
        result = run_part(experiment, out, RunPart.of(part), progress=False)
        assert (result.n_measured, result.n_awaited) == (result.n_shards, 0)

    def first() -> None:
        measure = pipeline.measure_shards

        def held_back(run, progress):
            while not released.exists():
                time.sleep(0.05)
            measure(run, progress)

        pipeline.measure_shards = held_back
        make("1/2")

    def second() -> None:
        kill_at("half", "measurement/shard-00003")
        make("2/2")

    def whole() -> None:
        try:
            run_experiment(experiment, out, progress=False)
        except LockedError as error:
            print(error, flush=True)

    one, two = forked(first), forked(second)
    print(exit_code(two), flush=True)
    in_a_fork(whole)
    print(in_a_fork(lambda: make("2/2")), flush=True)
    released.touch()
    print(exit_code(one), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
