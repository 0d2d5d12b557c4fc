"""The table by completion length."""

from __future__ import annotations

import numpy as np

import gradstats as gs
from gradstats.report.analysis_tables import length_table


def test_a_row_a_bin_with_what_the_estimator_keeps():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 100, 400)
    batch = gs.estimators.Batch(rng.integers(0, 2, 400), lengths, np.repeat(np.arange(100), 4))
    scores = (rng.normal(size=(400, 8)) + batch.rewards[:, None]) * np.sqrt(lengths)[:, None]
    table = length_table(gs.variance_by_length(batch, "group_mean", scores, n_bins=2).to_frame(0.9))
    headings, rows = table.cells("plain")
    assert [row[0] for row in rows] == [
        "group_mean, 10–57 tokens (n = 198)",
        "group_mean, 58–99 tokens (n = 202)",
    ]
    assert headings[:2] == ["estimator", "scale kept"]
    assert [row[1] for row in rows] == ["0.75", "0.75"]
    assert "90% intervals" in table.caption
