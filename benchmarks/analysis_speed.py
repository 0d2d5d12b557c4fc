"""Processor seconds and peak memory of the analyses of a large measurement, one thread, one process each.

Writes figures/statistics/analysis_speed.csv: every question that a run asks of 2,000 prompts × 8 completions, with
scores multiplied in blocks; and of a smaller measurement, in turns, in blocks and as vectors of all completions. The
measurement is random: success rates differ between prompts, lengths are lognormal, and scores grow with the square root
of the length about a common direction of right answers. ``peak_mib`` includes the interpreter and its libraries
and the sketches (``sketches_mib``).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import tyro

if TYPE_CHECKING:
    from gradstats.measurement.measurement import Measurement

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "analysis_speed.csv"
FOUR = ("rloo", "grpo", "dr_grpo", "length_weighted(alpha=0.8, loo=True)")
SEVEN = ("reinforce", "constant(b=0.5)", "group_mean", *FOUR)
PER_PROMPT = 8
SMALL = (500, 2048)
Way = Literal["blocks", "vectors"]


def _asked() -> dict[str, Callable[[Measurement], pd.DataFrame]]:
    """Return what each case asks of a measurement."""
    import gradstats as gs
    from gradstats import analyses
    from gradstats.analyses.length_bins import variance_by_length

    asked: dict[str, Callable[[Measurement], pd.DataFrame]] = {
        "compare, 7 estimators": lambda measured: gs.compare(measured, SEVEN).to_frame(),
        "group sizes 2, 4, 8, 7 estimators": lambda measured: analyses.variance_by_group_size(
            measured, SEVEN, [2, 4, 8]
        ).to_frame(),
        "allocation, 4 estimators × 3 sizes": lambda measured: gs.allocate(
            measured, FOUR, tokens=1e6, group_sizes=[2, 4, 8]
        ).to_frame(),
        "by length, 4 estimators": lambda measured: variance_by_length(measured, FOUR).to_frame(),
        "by success, 2 estimators": lambda measured: gs.variance_by_success(measured, FOUR[:2]).to_frame(),
        "batch size, 7 estimators": lambda measured: analyses.batch_size(measured, SEVEN).to_frame(),
    }

    def all_of_them(measured: Measurement) -> pd.DataFrame:
        kept = measured.keeping_derived()
        return pd.concat([one(kept) for one in asked.values()])

    return {"nothing, read alone": lambda measured: pd.DataFrame(), **asked, "all of these, as in a run": all_of_them}


def write_measurement(folder: Path, n_prompts: int, dimension: int) -> None:
    """Write a random measurement of eight completions a prompt."""
    from gradstats.measurement.measurement import Measurement
    from gradstats.rollouts.table import Rollouts

    rng = np.random.default_rng(0)
    n = n_prompts * PER_PROMPT
    success = np.repeat(rng.beta(0.7, 0.7, n_prompts), PER_PROMPT)
    rewards = (rng.random(n) < success).astype(float)
    lengths = np.clip(np.exp(rng.normal(4.5, 0.6, n)), 8, 800).astype(int)
    direction = rng.standard_normal(dimension, dtype=np.float32) / np.sqrt(dimension)
    sketches = rng.standard_normal((n, dimension), dtype=np.float32) / np.float32(np.sqrt(dimension))
    sketches += (2.0 * (rewards - success)).astype(np.float32)[:, None] * direction
    sketches *= np.sqrt(lengths).astype(np.float32)[:, None]
    squares = np.einsum("nd,nd->n", sketches, sketches).astype(float) * rng.uniform(0.97, 1.03, n)
    tokens = [[1] * length for length in lengths]
    prompts = [f"p{number // PER_PROMPT}" for number in range(n)]
    rollouts = Rollouts.from_sequences([[1]] * n, tokens, rewards, prompts)
    per_token = [np.zeros(length, dtype=np.float32) for length in lengths]
    norms = pd.DataFrame({"whole": squares})
    Measurement(rollouts, norms, sketches, per_token, per_token, per_token, per_token).save(folder)


def measure(case: str, folder: Path, way: Way, frames: Path | None) -> dict[str, Any]:
    """Processor seconds and peak memory of one case."""
    from gradstats.measurement.measurement import read_measurement
    from gradstats.stats.variance import products

    products.FEWEST_NUMBERS = 0 if way == "blocks" else 2**62
    asked = _asked()[case]
    measured = read_measurement(folder)
    assert measured.sketches is not None
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        frame = asked(measured)
    seconds = time.process_time() - start
    if frames is not None:
        frames.mkdir(parents=True, exist_ok=True)
        frame.to_pickle(frames / f"{case.replace(' ', '_')}.pkl")
    status = Path(
        "/proc/self/status"
    ).read_text()  # getrusage begins with the peak of the process that started this one
    return {
        "case": case,
        "scores": way,
        "n_prompts": len(measured) // PER_PROMPT,
        "dimension": measured.sketches.shape[1],
        "cpu_seconds": seconds,
        "cpu_seconds_with_reading": time.process_time(),
        "sketches_mib": measured.sketches.nbytes / 2**20,
        "peak_mib": int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024.0,
        "machine": _machine(),
    }


def _machine() -> str:
    """Name the processor, as /proc/cpuinfo does."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, 1 thread"


def main(
    n_prompts: int = 2000,
    dimension: int = 16384,
    folder: Path | None = None,
    frames: Path | None = None,
    only: str = "",
    case: str | None = None,
    way: Way = "blocks",
    table: Path = TABLE,
) -> None:
    """Run every case in a process of its own and write the table.

    Args:
        n_prompts: prompts of the measurement.
        dimension: of the sketches.
        folder: where the measurement lies, or is written; a temporary folder by default.
        frames: where the frames of the cases are kept, to compare two versions.
        only: cases whose name begins so.
        case: one case, measured in this process and printed as JSON.
        way: how its scores are multiplied.
        table: the file that is written.
    """
    from gradstats.system.files import atomic_path

    if case is not None:
        assert folder is not None
        print(json.dumps(measure(case, folder, way, frames)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        large, small = folder or Path(temporary) / "large", Path(temporary) / "small"
        write_measurement(small, *SMALL)
        if not large.exists():
            write_measurement(large, n_prompts, dimension)
        ways: tuple[tuple[Path, Way], ...] = ((small, "vectors"), (small, "blocks"), (large, "blocks"))
        rows = []
        for name in (one for one in _asked() if one.startswith(only)):
            for place, chosen in ways:
                command = [sys.executable, __file__, "--case", name, "--folder", str(place), "--way", chosen]
                command += [] if frames is None else ["--frames", str(frames / f"{place.name}_{chosen}")]
                one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
                rows.append(json.loads(done.stdout))
                print(rows[-1], flush=True)
    with atomic_path(table) as partial:
        pd.DataFrame(rows).round(2).to_csv(partial, index=False, lineterminator="\n")


if __name__ == "__main__":
    tyro.cli(main)
