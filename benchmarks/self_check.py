"""Cost of the self-check: its share of the processor time of measuring 500 completions, and of a whole run of 500.

Writes figures/engines/self_check.csv. Counted as the self-check is everything that happens before the first chunk is
measured (opening the session: the plain passes over three sequences, the engine on them, the comparisons), and the
plain pass over one more sequence of a later chunk. All are paid once a call, whatever the number of completions. Each
row is a fresh process, so that whatever torch does once is counted as the self-check's. ``resumed_cpu_seconds`` is what
a call that goes on pays instead, which compares a sequence of its first chunk and one of a later chunk.

The row "whole run" samples, measures and analyses the embedded policy as ``gradstats run embedded`` does. The others
measure completions of random tokens about as long as the embedded policy's answers; what they say does not matter to
the cost. Of models with random weights (the architectures of benchmarks/engines.py), the check is that of all
completions, some are measured, and the time of the others is extrapolated by their tokens. Rows of the embedded policy
are the medians of three processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Int

import gradstats
from gradstats.config.experiment import load_experiment
from gradstats.config.sections import MeasurementSection
from gradstats.gradients import MeasuringSession, session
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts
from gradstats.runs.pipeline import run_experiment
from gradstats.system.files import atomic_path

TABLE = Path(__file__).parents[1] / "figures" / "engines" / "self_check.csv"
GROUP_SIZE = 4
MEDIAN_LENGTH = 90
PROMPT_LENGTH = 30
#: Model → completions that are measured; None for all.
MEASURED: dict[str, int | None] = {"embedded": None, "width 512": 100, "SmolLM2-135M": 50}
WHOLE_RUN = "whole run"
#: Processes of a case of the embedded policy, of which the median is kept.
REPEATS = 3


def main(n: int = 500, only: str = "", case: str | None = None, table: Path = TABLE) -> None:
    """Run every case and write the table.

    Args:
        n: completions.
        only: cases of the policy whose name begins so; the whole run is one of "embedded".
        case: one case, run in this process and printed as JSON.
        table: the file that is written.
    """
    if case is not None:
        row = _whole_run(n) if case == WHOLE_RUN else _measuring(case, n)
        print(json.dumps(row | {"share": row["check_cpu_seconds"] / row["cpu_seconds"]}))
        return
    rows = []
    for name in (*MEASURED, WHOLE_RUN):
        policy, of = ("embedded", WHOLE_RUN) if name == WHOLE_RUN else (name, "measuring")
        if not policy.startswith(only):
            continue
        found = [_in_a_process(name, n) for _ in range(1 if MEASURED.get(name) else REPEATS)]
        row = sorted(found, key=lambda one: one["share"])[len(found) // 2]
        rows.append({"policy": policy, "of": of, "n": n} | row)
        print(rows[-1], flush=True)
    with atomic_path(table) as partial:
        pd.DataFrame(rows).round(4).to_csv(partial, index=False, lineterminator="\n")


def _in_a_process(case: str, n: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", case, "--n", str(n)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


def _whole_run(n: int) -> dict[str, float]:
    settings = [f"prompts.n={n // GROUP_SIZE}", f"sampling.group_size={GROUP_SIZE}"]
    experiment = load_experiment("embedded", settings)
    seconds = _timed_checks()
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        run_experiment(experiment, Path(folder) / "run", progress=False)
        total = time.process_time() - start
    return {"n_measured": n, "check_cpu_seconds": sum(seconds), "cpu_seconds": total}


def _measuring(name: str, n: int) -> dict[str, float]:
    policy = _policy(name)
    rng = np.random.default_rng(0)
    lengths = np.ceil(MEDIAN_LENGTH * np.exp(0.4 * rng.standard_normal(n))).astype(int)
    rollouts = _rollouts(lengths, policy.model.config.vocab_size, rng)
    some = np.sort(rng.permutation(n)[: MEASURED[name] or n])
    seconds = _timed_checks()
    section = MeasurementSection(engine="ghost")
    opened = MeasuringSession.open(policy, rollouts, section)
    opened.schedule_recheck(rollouts.select(some))
    start = time.process_time()
    measured = opened.measure(rollouts.select(some))
    opening, later = seconds
    measuring = time.process_time() - start - later
    measuring *= float((lengths + PROMPT_LENGTH).sum() / (lengths[some] + PROMPT_LENGTH).sum())
    rest = rollouts.select(some[: len(some) // 5])
    resumed = MeasuringSession.open(policy, rollouts, section, earlier=measured.metadata)
    resumed.schedule_recheck(rest)
    resumed.measure(rest)
    return {
        "n_measured": len(some),
        "check_cpu_seconds": opening + later,
        "resumed_cpu_seconds": sum(seconds[2:]),
        "cpu_seconds": opening + later + measuring,
    }


def _policy(name: str) -> Policy:
    if name == "embedded":
        return gradstats.load_policy(name, progress=False)
    from engines import build

    return build(name, "cpu")


def _rollouts(lengths: Int[np.ndarray, " n"], vocabulary: int, rng: np.random.Generator) -> Rollouts:
    prompts = [rng.integers(2, vocabulary, PROMPT_LENGTH).tolist() for _ in lengths]
    completions = [rng.integers(2, vocabulary, length).tolist() for length in lengths]
    ids = [f"p{row // GROUP_SIZE}" for row in range(len(lengths))]
    return Rollouts.from_sequences(prompts, completions, np.zeros(len(lengths)), ids)


def _timed_checks() -> list[float]:
    """Note the processor seconds of both parts of the self-check from now on, in the list that is returned."""
    seconds: list[float] = []
    # a class method is looked up on the class, which passes itself
    MeasuringSession.open = _timed(MeasuringSession.open, seconds)
    session.check_result = _timed(session.check_result, seconds)
    return seconds


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Return a function that also notes the processor seconds that it takes."""

    def timed(*given: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return function(*given, **options)
        finally:
            seconds.append(time.process_time() - start)

    return timed


if __name__ == "__main__":
    tyro.cli(main)
