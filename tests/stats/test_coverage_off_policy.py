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


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sketches_are_of_the_gradients_that_estimators_combine():
    """In so many dimensions that a sketch is nearly exact, numbers are those of the scores of single tokens."""
    chosen = [simulation.recipes.get(name) for name in ("rloo", "grpo", "gspo")]
    batch, _, token_scores = simulation.policy().sample(12, simulation.GROUP_SIZE, rng=0)
    measured = simulation.sketched(batch, token_scores, chosen, 40_000, np.random.default_rng(1))
    assert list(measured.weighted) == ["token_clip[+]", "token_clip[-]"]
    found = simulation.compare(measured, chosen, target="importance").to_frame()
    exact = simulation.compare(batch, chosen, token_scores, target="importance").to_frame()
    np.testing.assert_allclose(found["trace_cov"], exact["trace_cov"], rtol=0.05)
    np.testing.assert_allclose(found["ratio"], exact["ratio"], rtol=0.05)


def test_rows_of_other_sketches_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulation, "FOLDER", tmp_path)
    monkeypatch.setattr(simulation, "SKETCHED", ("rloo",))
    for replications, dim in ((2, 8), (2, 16), (3, 8)):
        simulation.main((12,), replications, sketch_dim=dim)
    table = pd.read_csv(tmp_path / simulation.SKETCHED_TABLE)
    assert table.groupby("sketch_dim")["replications"].first().to_dict() == {8: 3, 16: 2}
    assert len(table) == 2 * len(simulation.QUANTITIES)


def test_the_committed_rows_from_sketches_cover():
    table = pd.read_csv(simulation.FOLDER / simulation.SKETCHED_TABLE)
    assert set(table["estimator"]) == {f"recipe:{name}" for name in simulation.SKETCHED}
    assert (table["known"] == 1.0).all()
    error = np.sqrt(0.95 * 0.05 / table["replications"])
    assert (table["coverage"] >= 0.92 - 2.0 * error).all()
