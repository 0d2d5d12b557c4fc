"""Time and memory of `gradstats.compare`: 16 estimators on sketches, and how both grow.

Writes figures/statistics/speed.csv and docs/statistics_speed.png. Each case runs in a separate process, so that
peak memory is that of the case. Group-level estimators have closed-form replicates and no deals; ``n_resamples`` is how
often prompts are dealt into batches for the two batch-level estimators, None as `compare` chooses, and 0 replaces these
two by group-level ones. Bootstrap and simultaneous intervals are included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float

if TYPE_CHECKING:
    from gradstats.estimators import Batch

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "speed.csv"
FIGURE = Path(__file__).parents[1] / "docs" / "statistics_speed"
PER_PROMPT = 8
GROUP_LEVEL = (
    "reinforce",
    "constant(b=0.5)",
    "group_mean",
    "rloo",
    "grpo",
    "dr_grpo",
    "token_mean",
    "token_mean(loo=True)",
    "length_weighted(alpha=0.8)",
    "length_weighted(alpha=0.8, loo=True)",
    "norm_weighted",
    "norm_weighted(loo=True)",
    "asymmetric",
    "kimi(tau=0.5)",
)
BATCH_LEVEL = ("batch_mean", "james_stein")
BASE: dict[str, int | None] = {"n": 1000, "dimension": 4096, "n_resamples": None}
GROWTH: dict[str, tuple[int | None, ...]] = {
    "n": (250, 500, 1000, 2000),
    "dimension": (1024, 4096, 16384),
    "n_resamples": (0, 64, 256, None, 1000),
}


def measure(n: int, dimension: int, n_resamples: int | None) -> dict[str, float]:
    """Seconds and MiB of one comparison of 16 estimators, and how often prompts were dealt for it."""
    import resource

    from gradstats.analyses.variance import compare

    batch, sketches = random_batch(n, dimension)
    estimators = [*GROUP_LEVEL, *(("max_rl", "asymmetric(delta=-0.2)") if n_resamples == 0 else BATCH_LEVEL)]
    start, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = compare(batch, estimators, sketches, scores_are_sketches=True, n_resamples=n_resamples or None)
        table.to_frame()
    return {
        "deals": max(row.n_deals or 0 for row in table.rows),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
    }


def random_batch(n: int, dimension: int) -> tuple[Batch, Float[np.ndarray, "n dimension"]]:
    """Random rewards and lengths of completions, eight to a prompt, with random sketches."""
    from gradstats.estimators import Batch

    rng = np.random.default_rng(0)
    sketches = rng.standard_normal((n, dimension), dtype=np.float32)
    batch = Batch(
        (rng.random(n) < 0.5).astype(float),
        rng.integers(10, 300, n),
        np.arange(n) // PER_PROMPT,
        sq_norms=np.einsum("nd,nd->n", sketches, sketches).astype(float),
    )
    return batch, sketches


def main(case: str | None = None) -> None:
    """Run every case and write the table and the figure.

    Args:
        case: a case as JSON, measured in this process and printed.
    """
    if case is not None:
        print(json.dumps(measure(**json.loads(case))))
        return
    rows, measured = [], {}
    for axis, values in GROWTH.items():
        for value in values:
            settings = BASE | {axis: value}
            key = json.dumps(settings)
            if key not in measured:
                command = [sys.executable, __file__, "--case", key]
                measured[key] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            rows.append({"growth_in": axis, **settings, **measured[key]})
            print(rows[-1], flush=True)
    draw(pd.DataFrame(rows))


def draw(table: pd.DataFrame) -> None:
    """Write the table, and processor seconds (elapsed ones depend on other users of the machine) by axis of growth."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from gradstats import plots
    from gradstats.system.files import atomic_path

    labels = {
        "n": ("n", "sequences"),
        "dimension": ("dimension", "sketch dimension"),
        "n_resamples": ("deals", "deals into batches"),
    }
    with mpl.rc_context(plots.style("icml", "full", height=1.9)):  # pyright: ignore[reportArgumentType]
        fig, axes = plt.subplots(1, len(GROWTH), sharey=True)
        for ax, axis in zip(axes, GROWTH, strict=True):
            column, label = labels[axis]
            rows = table[table["growth_in"] == axis].sort_values(column)  # pyright: ignore[reportCallIssue, reportArgumentType]
            ax.plot(rows[column], rows["cpu_seconds"], marker="o")
            ax.axhline(5.0, color="0.5", linewidth=0.8, linestyle=":")
            ax.set_xlabel(label)
        axes[0].set_ylabel("processor seconds,\n16 estimators")
        axes[0].set_ylim(0.0, 1.1 * table["cpu_seconds"].max())
        with atomic_path(TABLE) as partial:
            table.round(3).to_csv(partial, index=False, lineterminator="\n")
        for path in plots.save_figure(fig, FIGURE, ["png"], overwrite=True):
            print(path)
        plt.close(fig)


if __name__ == "__main__":
    tyro.cli(main)
