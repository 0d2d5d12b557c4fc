"""A column of the comparison is one entry: that of CONTRIBUTING appears wherever the others do."""

import subprocess
import sys
from pathlib import Path

# Declared before the rest is imported, as an entry of the file would be.
SCRIPT = """
from gradstats.stats.variance import quantities

exec(ENTRY, vars(quantities))
quantities.COMPARED = tuple(one for one in quantities.QUANTITIES.values() if one.compared)

import gradstats as gs
import numpy as np
import pytest
from gradstats.analyses import registry
from gradstats.cli.terminal import show_answer_table
from gradstats.report.analysis_tables import table_of, variance_table
from gradstats.report.columns import INDEX
from gradstats.report.page import _defined, table_on_page

rng = np.random.default_rng(0)
batch = gs.estimators.Batch(rng.integers(0, 2, 240), np.full(240, 9), np.repeat(np.arange(60), 4))
comparison = gs.compare(batch, ["rloo", "reinforce"], batch.rewards[:, None] + rng.normal(size=(240, 8)))
frame, analysis = comparison.to_frame(), registry.get("variance")
assert frame["noise"].to_numpy() == pytest.approx(np.sqrt(frame["trace_cov"]))
assert frame.columns.get_loc("noise_low") < frame.columns.get_loc("in_best_set")
assert comparison.rows[0].noise.value == frame["noise"][0]
assert "noise" in variance_table(frame).columns
assert "& noise" in variance_table(frame).to_latex()
table, labels = table_of(analysis, frame, "page"), ["rloo", "reinforce"]
page = table_on_page(table, lambda name: _defined(analysis, analysis, name), labels)
noise = next(column for column in page["columns"] if column["heading"] == "noise")
assert (noise["meaning"], noise["file"]) == ("Root of tr Cov.", "gradstats/stats/variance/quantities.py")
assert ("noise", "root of tr Cov") in [(one.name, one.meaning) for one in INDEX["variance"]]
assert gs.plot_variance(frame, value="noise").get_xlabel() == "noise of a group's gradient"
show_answer_table(analysis, frame)
"""


def test_an_entry_is_a_column_everywhere():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    entry = text.partition("## Add a column")[2].partition("```python\n")[2].partition("```")[0]
    script = f"ENTRY = {entry!r}\n{SCRIPT}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert " noise " in found.stdout
