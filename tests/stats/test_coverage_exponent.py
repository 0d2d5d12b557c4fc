"""Coverage of the interval of the best exponent: the committed table, and the page that shows it."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradstats.reference import EnumeratedPolicy
from gradstats.stats.jackknife import mean_statistic

PATH = Path(__file__).parents[2] / "benchmarks" / "coverage_exponent.py"
SPEC = importlib.util.spec_from_file_location("coverage_exponent", PATH)
simulation = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simulation)


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(simulation.TABLE)


def test_the_committed_intervals_cover(table):
    assert len(table) == 6 * len(simulation.SIZES)
    floor = 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / table["replications"])
    assert (table["coverage"] >= floor).all()
    # Wider than Student's with M − 1 degrees of freedom, never narrower.
    assert (table["coverage"] >= table["student"]).all()
    np.testing.assert_allclose(table[["coverage", "below", "above"]].sum(axis=1), 1.0)


def test_the_page_shows_the_committed_table(table):
    page = simulation.PAGE.read_text(encoding="utf-8")
    assert simulation.with_table(page, table) == page


@pytest.mark.parametrize(("exact", "side"), [(0.1, "coverage"), (-0.7, "above"), (0.9, "below")])
def test_a_miss_has_a_side(exact, side):
    lowest = 0.1 + 0.3 * np.random.default_rng(0).normal(size=100)
    found = simulation.held([mean_statistic((value - lowest) ** 2 + 1.0) for value in simulation.EXPONENTS], exact)
    assert [name for name in ("coverage", "below", "above") if found[name]] == [side]
    assert found["student"] == (side == "coverage")


def test_a_row_states_its_population():
    policy = EnumeratedPolicy(vocabulary=3, max_length=3, dimension=4, n_prompts=5, rng=1)
    drawn = []

    def draw(n_prompts, rng):
        drawn.append(n_prompts)
        return policy.sample(n_prompts, 3, rng=rng)[:2]

    row = simulation.coverage(simulation.Population("tiny", 3, 0.1, draw), 20, 4)
    assert drawn == [20] * 4
    assert (row["population"], row["group_size"], row["n_prompts"], row["exact"]) == ("tiny", 3, 20, 0.1)
    assert row["coverage"] + row["below"] + row["above"] == pytest.approx(1.0)
    text = simulation.markdown(pd.DataFrame([row | {"coverage": 0.95, "student": 0.9}]))
    assert text.endswith("| tiny | 0.100 | 0.950 (0.900) |")
