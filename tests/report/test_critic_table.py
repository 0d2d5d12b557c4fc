"""The table of a value head beside Monte-Carlo values."""

import numpy as np

from gradstats.estimators import Batch
from gradstats.report.analysis_tables import critic_table
from gradstats.stats import critic_quality


def test_rows_are_the_states():
    rng = np.random.default_rng(0)
    true = rng.choice([0.2, 0.8], 90)
    values, fitted = rng.binomial(4, true)[:, None] / 4, true[:, None]
    batch = Batch(rng.random(90) < true, np.ones(90, dtype=int), np.arange(90), values=values, fitted_values=fitted)
    table = critic_table(critic_quality(batch).to_frame(0.9))
    assert table.rows[:2] == ("all (n = 90)", "step 0 (n = 90)")
    assert "90% intervals" in table.caption
    assert "at most 0.25" in table.caption
    assert list(table.columns) == ["mean value of the head", "mean Monte-Carlo value", "bias", "explained variance"]
