"""Run the benchmarks of speed on their short cases, and print each ratio of today beside the committed one.

Every ratio compares neighbouring turns of one run with an alternative, so that it can be compared across machines and
days; seconds cannot. Nothing that is committed is replaced: results go to a temporary folder. All of them take about
half an hour of one core.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"


def _of_column(ratio: str) -> Callable[[pd.DataFrame], np.ndarray]:
    return lambda table: table[ratio].to_numpy(dtype=float)


def _blocks_over_vectors(table: pd.DataFrame) -> np.ndarray:
    """Return the time of each analysis of the smaller measurement in blocks over that as vectors."""
    small = table[table["n_prompts"] == 500].pivot_table(index="case", columns="scores", values="cpu_seconds")
    ratios = small["blocks"] / small["vectors"]
    return np.array([ratios.get(case, np.nan) for case in table["case"]])


@dataclass(frozen=True)
class Listed:
    """A benchmark: its script, the arguments of a short run, its table under figures/, and what is compared in it."""

    script: str
    table: str
    arguments: tuple[str, ...]  # OUT is the folder of today's table, TABLE the table itself
    keys: tuple[str, ...]  # columns that name a row
    ratio: Callable[[pd.DataFrame], np.ndarray]
    what: str


BENCHMARKS = {
    "engines": Listed(
        "engines.py",
        "engines/engines.csv",
        ("--cases", "SmolLM2-135M, T=128", "--out", "OUT"),
        ("case", "method"),
        _of_column("processor_ratio"),
        "time over a plain backward pass",
    ),
    "long traces": Listed(
        "long_traces.py",
        "long_traces/steps.csv",
        ("--which", "steps", "--tokens", "2048", "--out", "OUT"),
        ("tokens", "method"),
        _of_column("over_step"),
        "time over the best training step",
    ),
    "sketches": Listed(
        "sketches.py",
        "sketches/sketches.csv",
        ("--repeats", "3", "--n-seeds", "10", "--out", "OUT"),
        ("layer", "method"),
        _of_column("ratio_to_weight_gradient"),
        "time over a weight gradient",
    ),
    "analyses": Listed(
        "analysis_speed.py",
        "statistics/analysis_speed.csv",
        ("--n-prompts", "500", "--dimension", "2048", "--table", "TABLE"),
        ("case",),
        _blocks_over_vectors,
        "time in blocks over time as vectors",
    ),
    "figures": Listed(
        "figures.py",
        "statistics/figures_speed.csv",
        ("--table", "TABLE"),
        ("formats",),
        _of_column("over_each"),
        "time over a layout for each format",
    ),
    "monitor": Listed(
        "monitor.py",
        "engines/monitor.csv",
        ("--n-steps", "12", "--table", "TABLE"),
        ("cap",),
        _of_column("over_step"),
        "time of a measured step over one that is not",
    ),
    "self-check": Listed(
        "self_check.py",
        "engines/self_check.csv",
        ("--only", "embedded", "--table", "TABLE"),
        ("policy", "of"),
        _of_column("share"),
        "share of the time",
    ),
    "sampling": Listed(
        "sampling.py",
        "sampling/sampling.csv",
        ("--cases", "16 completions of ≤ 64", "--out", "OUT"),
        ("case", "method"),
        _of_column("processor_ratio"),
        "time over the default sampler",
    ),
}


def _ratios(listed: Listed, path: Path) -> dict[str, float]:
    """Return the ratios of a table by the names of their rows."""
    table = pd.read_csv(path)
    names = [", ".join(str(row[key]) for key in listed.keys) for row in table.to_dict("records")]
    return dict(zip(names, listed.ratio(table).tolist(), strict=True))


def main(names: tuple[str, ...] = tuple(BENCHMARKS)) -> None:
    """Run benchmarks, and print a line for each ratio.

    Args:
        names: which of them; all by default.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise SystemExit(f"names holds {unknown[0]!r}: choose from {', '.join(map(repr, BENCHMARKS))}")
    for name in names:
        listed = BENCHMARKS[name]
        print(f"{name}: {listed.what}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / Path(listed.table).name
            given = [{"OUT": folder, "TABLE": str(table)}.get(one, one) for one in listed.arguments]
            done = subprocess.run(
                [sys.executable, "-P", str(HERE / listed.script), *given], capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(f"{listed.script} failed:\n{done.stderr[-2000:]}")
            today, committed = _ratios(listed, table), _ratios(listed, FIGURES / listed.table)
        for row, ratio in today.items():
            if np.isnan(ratio):
                continue
            before = f"{committed[row]:6.2f} committed" if row in committed else "not committed"
            print(f"  {row:<52} {ratio:6.2f} today, {before}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
