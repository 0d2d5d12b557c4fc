"""Coverage of 95 % intervals of completions from an older policy, against exact enumeration, for every recipe."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
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


def test_the_committed_table_holds_every_recipe_at_no_less_than_what_is_claimed():
    table = pd.read_csv(simulation.FOLDER / "coverage_off_policy.csv")
    assert set(table["estimator"]) == {one.label for one in simulation.zoo()}
    assert set(table["quantity"]) == set(simulation.QUANTITIES)
    assert (table["known"] == 1.0).all()
    assert table["replications"].min() >= 300
    error = np.sqrt(0.95 * 0.05 / table["replications"])
    assert (table["coverage"] >= 0.92 - 2.0 * error).all()
    assert (table.groupby(["quantity", "n_prompts"])["coverage"].mean() >= 0.94).all()


def test_an_interrupted_simulation_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulation, "FOLDER", tmp_path)
    chosen = [one for one in simulation.zoo() if one.label in ("recipe:rloo", "recipe:grpo")]
    monkeypatch.setattr(simulation, "zoo", lambda: chosen)
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    simulation.main((12,), 2, finished=whole)
    expected = (tmp_path / "coverage_off_policy.csv").read_text()
    lines = whole.read_text().splitlines(keepends=True)
    cut.write_text(lines[0] + lines[1][:20])  # killed while it wrote the second data set
    simulation.main((12,), 2, finished=cut)
    assert cut.read_text() == whole.read_text()
    assert (tmp_path / "coverage_off_policy.csv").read_text() == expected
