"""Cost of the self-check: its share of the processor time of measuring 500 completions.

Writes figures/engines/self_check.csv. The completions are random tokens about as long as the embedded policy's answers;
what they say does not matter to the cost. Counted are the plain passes over three sequences and the engine on them
before the first chunk, and the plain pass over one more sequence of a later chunk. All are paid once a call, whatever
the number of completions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import tyro

import gradstats
from gradstats.config.sections import MeasurementSection
from gradstats.gradients import MeasuringSession, session
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import atomic_path

Engine = Literal["auto", "ghost", "vmap", "loop"]
TABLE = Path(__file__).parents[1] / "figures" / "engines" / "self_check.csv"


def main(
    n: int = 500, policy: str = "embedded", median_length: int = 90, engines: tuple[Engine, ...] = ("ghost",)
) -> None:
    """Measure once with each engine and write the table.

    Args:
        n: completions.
        policy: as for ``gradstats measure``.
        median_length: median number of completion tokens.
        engines: gradient engines.
    """
    loaded = gradstats.load_policy(policy, progress=False)
    rollouts = _rollouts(n, median_length, loaded.model.config.vocab_size)
    rows, check_result = [], session.check_result
    for engine in engines:
        seconds: list[float] = []
        session.check_result = _timed(check_result, seconds)
        start = time.process_time()
        opened = MeasuringSession.open(loaded, rollouts, MeasurementSection(engine=engine))
        seconds.append(time.process_time() - start)
        opened.measure(rollouts)
        total = time.process_time() - start
        rows.append(
            {"policy": policy, "engine": engine, "n": n, "check_cpu_seconds": sum(seconds), "cpu_seconds": total}
            | {"share": sum(seconds) / total}
        )
        print(rows[-1], flush=True)
    with atomic_path(TABLE) as partial:
        pd.DataFrame(rows).round(4).to_csv(partial, index=False, lineterminator="\n")


def _rollouts(n: int, median_length: int, vocabulary: int) -> Rollouts:
    rng = np.random.default_rng(0)
    lengths = np.ceil(median_length * np.exp(0.4 * rng.standard_normal(n))).astype(int)
    prompts = [rng.integers(2, vocabulary, 30).tolist() for _ in range(n)]
    completions = [rng.integers(2, vocabulary, length).tolist() for length in lengths]
    return Rollouts.from_sequences(prompts, completions, np.zeros(n), [f"p{row // 4}" for row in range(n)])


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
