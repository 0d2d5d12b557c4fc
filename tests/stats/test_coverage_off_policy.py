"""Coverage of 95 % intervals of completions from an older policy, against exact enumeration, for every recipe."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "coverage_off_policy.py"
SPEC = importlib.util.spec_from_file_location("coverage_off_policy", PATH)
simulation = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simulation)

REPLICATIONS = 100


@pytest.mark.slow
def test_intervals_cover_off_policy_and_the_ranking_is_right():
    """Squares of products of signals are skewed: 0.90 is asked of single rows, 0.92 of each quantity on average."""
    table = simulation.coverage(200, REPLICATIONS, seed=3)
    floor = 0.90 - 2.0 * np.sqrt(0.90 * 0.10 / REPLICATIONS)
    assert (table["coverage"] >= floor).all(), table[table["coverage"] < floor]
    assert (table.groupby("quantity")["coverage"].mean() >= 0.92).all()
    assert table.attrs["ranked"] >= 0.70
