"""Several processes that make a run together, forked from this one, of which the first is killed.

``python shared_runs.py EXPERIMENT FOLDER N MOMENT:WRITE …`` starts for each moment N processes on FOLDER/MOMENT-WRITE
at once, the first of which is killed there: at a moment of a write, as in :mod:`killed_runs`, or when it has
``claimed`` its n-th shard. It prints the name, how many of the processes ended well, how many analysed, and how often
shards were made twice.
"""

import multiprocessing
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from killed_runs import die, exit_code, forked, in_a_fork, kill_at
from small_runs import leave_out_pictures

from gradstats.config.experiment import read_experiment
from gradstats.gradients.session import MeasuringSession
from gradstats.runs import claims
from gradstats.runs.pipeline import run_experiment
from gradstats.sampling.plan import SamplingPlan


def kill_when(turn: str) -> None:
    """Let this process be killed at a turn, MOMENT:WRITE."""
    moment, _, write = turn.partition(":")
    if moment == "claimed":
        kill_when_claimed(int(write))
    elif moment != "none":
        kill_at(moment, write)


def in_worker(folder: str) -> None:
    """Let a worker that starts note what it makes, and be killed where its number is among the turns of a folder."""
    keep_count(Path(folder, "counts"))
    for turn in Path(folder, "turns").read_text().split():
        with suppress(FileExistsError):
            Path(folder, f"killed-{turn.replace('/', '-')}").touch(exist_ok=False)
            kill_when(turn)
            return


def n_again(counts: Path) -> int:
    """How often batches were drawn, or shards measured, again."""
    return sum(times - 1 for times in Counter(counts.read_text().splitlines()).values())


def kill_when_claimed(n: int) -> None:
    own, made = claims.Board.take, []

    def take(board, held, files):
        number = own(board, held, files)
        if number >= 0:
            made.append(number)
        if len(made) == n:
            die()
        return number

    claims.Board.take = take


def keep_count(file: Path) -> None:
    """Add a line to a file for each batch that is drawn and each shard that is measured."""
    draw, measure = SamplingPlan.draw, MeasuringSession.measure

    def note(*what):
        with file.open("a") as out:
            out.write(" ".join(map(str, what)) + "\n")

    def drawn(self, batch, *rest):
        note("drawn", batch)
        return draw(self, batch, *rest)

    def measured(self, rollouts, *rest):
        note("measured", rollouts.prompt_id[0], rollouts.sample_id[0])
        return measure(self, rollouts, *rest)

    SamplingPlan.draw, MeasuringSession.measure = drawn, measured


def main(experiment_file: str, folder: str, n: str, *moments: str) -> None:
    experiment = read_experiment(Path(experiment_file))
    leave_out_pictures(pytest.MonkeyPatch())
    claims.BETWEEN_LOOKS = 0.05
    for text in moments:
        out = Path(folder, text.replace(":", "-").replace("/", "-"))
        counts, analysed = out.with_suffix(".counts"), out.with_suffix(".analysed")
        started = multiprocessing.get_context("fork").Barrier(int(n))
        out.parent.mkdir(exist_ok=True)
        analysed.touch()
        counts.touch()

        def together(is_first: bool, text=text, out=out, counts=counts, analysed=analysed, started=started):
            keep_count(counts)
            if is_first:
                kill_when(text)
            started.wait()  # all begin in the same millisecond
            if run_experiment(experiment, out, progress=False) is not None:
                with analysed.open("a") as file:
                    file.write(f"{os.getpid()}\n")

        children = [forked(lambda one=one: together(one == 0)) for one in range(int(n))]
        codes = [exit_code(child) for child in children]
        if not analysed.read_text():  # the last one was killed while it did

            def again(out=out, counts=counts):
                keep_count(counts)
                run_experiment(experiment, out, progress=False)

            in_a_fork(again)
        ended = sum(not code for code in codes)
        print(out.name, ended, len(analysed.read_text().split()), n_again(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
