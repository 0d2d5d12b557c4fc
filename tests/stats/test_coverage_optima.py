"""Coverage of the intervals of allocations, scales and optima: the committed table, and the pages that show it."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "coverage_optima.py"
SPEC = importlib.util.spec_from_file_location("coverage_optima", PATH)
simulation = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simulation)

#: What docs/statistics.md names as short of the level with 30 prompts.
SHORT = {("between_prompt", 30)}


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(simulation.TABLE)


def test_the_committed_table_covers_except_where_the_page_says_so(table):
    rows = table[table["coverage"].notna()]
    assert set(rows["part"]) <= set(simulation.PARTS)
    counted = rows["replications"] * rows["known"]
    # 0.92 within two standard errors, of the data sets in which the interval is known.
    floor = 0.92 - 2.0 * np.sqrt(0.95 * 0.05 / counted)
    short = rows[rows["coverage"] < floor]
    assert set(zip(short["quantity"], short["n_prompts"], strict=True)) <= SHORT


@pytest.mark.parametrize("name", simulation.PAGES)
def test_pages_show_the_committed_table(table, name):
    page = (simulation.ROOT / "docs" / name).read_text(encoding="utf-8")
    assert simulation.with_tables(page, name, table) == page


def test_a_simulation_gives_a_row_for_each_interval():
    found = simulation.coverage("scales", 40, 3)
    assert list(found["estimator"]) == ["grpo, p in 0–0.4", "grpo, p in 0.4–1"]
    assert (found["replications"] == 3).all()
    assert found["exact"].between(1.3, 1.6).all()
    text = simulation.markdown(found.assign(coverage=[0.95, np.nan], known=[0.5, 0.0]))
    assert "| `scale` | `grpo, p in 0–0.4` | 1.42 | 0.950 (50% known) |" in text
    assert text.endswith("| 1.42 | – |")
