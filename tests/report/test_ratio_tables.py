"""Tables of ratios and of clips."""

from __future__ import annotations

import pandas as pd
import pytest

import gradstats as gs
from gradstats.report.analysis_tables import clipping_table, ratio_table
from tests.off_policy import turned_policy


@pytest.fixture(scope="module")
def found() -> gs.RatioDiagnostics:
    return gs.ratio_diagnostics(turned_policy().sample(40, 4, rng=0)[0], n_bins=2)


def test_rows_of_all_completions_come_first(found: gs.RatioDiagnostics, tmp_path):
    table = ratio_table(found.to_frame(0.9))
    assert table.rows[:3] == (
        f"token, all (n = {found.spreads[0].n:,})",
        "completion, all (n = 160)",
        "geometric mean, all (n = 160)",
    )
    assert table.rows[3].startswith("token, 1–")
    assert "90%" in table.caption
    value, low, high = table.columns["effective sample size"][1]
    assert (low, high) == pytest.approx(found.confidence_interval(0.9))
    assert low < value < high
    paths = table.save(tmp_path / "ratios")
    assert len(pd.read_csv(paths[2])) == len(found.to_frame())


def test_clips(found: gs.RatioDiagnostics):
    table = clipping_table(found.clipping_frame())
    assert "grpo" in table.rows
    value, low, high = table.columns["tokens clipped"][table.rows.index("grpo")]
    assert 0 <= low <= value <= high <= 1
    assert "| recipe | " in table.to_markdown()


def test_a_share_that_needs_token_energies_is_explained_in_the_caption(found: gs.RatioDiagnostics):
    batch = turned_policy().sample(40, 4, rng=0)[0].with_fields(token_energy=None)
    frame = gs.ratio_diagnostics(batch, n_bins=2).clipping_frame()
    unknown = frame["removed_of"] == "unknown"
    assert unknown.any()
    assert frame.loc[unknown, "removed_share"].isna().all()
    said = "Dashes: energies of tokens were not measured (token_probes)"
    assert said in clipping_table(frame).caption
    assert said not in clipping_table(found.clipping_frame()).caption
