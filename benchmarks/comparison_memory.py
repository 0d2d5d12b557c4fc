"""Peak memory of `gradstats.compare` on up to 200 000 completions, eight to a prompt.

Writes figures/statistics/comparison_memory.csv. Each size runs in a separate process, so that the peak is its own. The
estimators are a plain sum, two baselines, one weighting by length and one recipe, of which none deals prompts into
batches. The peak includes the interpreter and its libraries (``libraries_mib``, before anything is made) and the
sketches themselves (``sketches_mib``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pandas as pd
import tyro
from comparison_speed import random_batch

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "comparison_memory.csv"
SIZES = (25_000, 50_000, 100_000, 200_000)
ESTIMATORS = ("reinforce", "group_mean", "rloo", "length_weighted(alpha=0.8, loo=True)", "recipe:grpo")


def measure(n: int, dimension: int) -> dict[str, float]:
    """Peak memory and processor seconds of one comparison of ``n`` completions."""
    from gradstats.analyses.variance import compare

    libraries = _peak_mib()
    batch, sketches = random_batch(n, dimension)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        compare(batch, list(ESTIMATORS), sketches, scores_are_sketches=True).to_frame()
    return {
        "n": n,
        "dimension": dimension,
        "sketches_mib": sketches.nbytes / 2**20,
        "libraries_mib": libraries,
        "peak_mib": _peak_mib(),
        "cpu_seconds": time.process_time() - start,
    }


def _peak_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main(sizes: tuple[int, ...] = SIZES, dimension: int = 64, case: int | None = None) -> None:
    """Run every size and write the table.

    Args:
        sizes: numbers of completions.
        dimension: of the sketches.
        case: one size, measured in this process and printed as JSON.
    """
    from gradstats.system.files import atomic_path

    if case is not None:
        print(json.dumps(measure(case, dimension)))
        return
    rows = []
    for n in sizes:
        command = [sys.executable, __file__, "--case", str(n), "--dimension", str(dimension)]
        rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        print(rows[-1], flush=True)
    with atomic_path(TABLE) as partial:
        pd.DataFrame(rows).round(1).to_csv(partial, index=False, lineterminator="\n")


if __name__ == "__main__":
    tyro.cli(main)
