"""Peak memory of the gradient engines, as measured and as `--dry-run` estimates it.

Writes figures/memory/memory.csv. Measured peaks are those of figures/engines/engines.csv, each of a fresh process
(``python -P benchmarks/engines.py``), or measured now with ``--again``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import tyro

from gradstats.gradients import select_parameters
from gradstats.gradients.memory import activation_size, peak_memory
from gradstats.system.files import atomic_path

FIGURES = Path(__file__).parents[1] / "figures"
CASES = (
    *(f"width {width}, T={time}" for width in (128, 256, 512) for time in (64, 256)),
    "SmolLM2-135M, T=128",
    "SmolLM2-135M, T=512",
)
METHODS = ("ghost", "ghost+sketch", "vmap", "loop")


def benchmark(cases: tuple[str, ...] = CASES, again: bool = False, device: str = "cpu") -> None:
    """Estimate each case and engine, and write the table.

    Args:
        cases: names of cases of benchmarks/engines.py.
        again: measure the peaks now instead of taking those in figures/engines/engines.csv.
        device: cpu or cuda, for measuring again.
    """
    engines = _engines()
    known = pd.read_csv(FIGURES / "engines" / "engines.csv").set_index(["case", "method"])["peak_gib"]
    rows = []
    for name in cases:
        case = engines.CASES[name]
        policy = engines.build(case.model, device)
        selection, activations = select_parameters(policy.model), activation_size(policy)
        for method in (method for method in METHODS if method in case.methods):
            engine, _, sketched = method.partition("+")
            sketch_dim = engines.SKETCH_DIM if sketched else None
            estimate = peak_memory(policy, engine, selection, case.batch, case.time, sketch_dim, activations)
            measured = engines.peak_gib(name, method, device) if again else known[name, method]
            row = {"case": name, "engine": method, "measured_gib": measured, "estimated_gib": estimate.total}
            rows.append(row | {"estimated_over_measured": estimate.total / measured} | vars(estimate))
            print(name, method, f"{measured:.2f} GiB, estimated {estimate.total:.2f}", flush=True)
    with atomic_path(FIGURES / "memory" / "memory.csv") as partial:
        pd.DataFrame(rows).round(3).to_csv(partial, index=False, lineterminator="\n")


def _engines() -> Any:
    """Return benchmarks/engines.py, which lies in no package."""
    place = importlib.util.spec_from_file_location("engines_benchmark", Path(__file__).parent / "engines.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules[place.name] = module
    place.loader.exec_module(module)
    return module


if __name__ == "__main__":
    tyro.cli(benchmark)
