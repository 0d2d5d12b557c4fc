"""The command on importance ratios."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats as gs
from gradstats.report.analysis_tables import clipping_table, ratio_table


@pytest.fixture
def drawn_elsewhere(measured, tmp_path):
    """The measurement of the other tests, its sampler's log-probabilities a tenth of a nat away from the scorer's."""
    known = gs.read_measurement(measured)
    rng = np.random.default_rng(1)
    drawn = [scored + 0.1 * rng.normal(size=scored.size) for scored in known.logprobs]
    frame = known.rollouts.frame.assign(sampler_logprobs=drawn)
    replace(known, rollouts=gs.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    return tmp_path / "measurement"


def test_the_tables_and_the_csv(monkeypatch, capsys, drawn_elsewhere, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "ratios", drawn_elsewhere, "--bins", "2", "--out", tmp_path / "ratios.csv")
    assert code == 0
    assert "completion, all" in out
    assert "tokens clipped" in out
    expected = gs.ratio_diagnostics(gs.read_measurement(drawn_elsewhere), n_bins=2).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "ratios.csv"), expected, check_dtype=False)


def test_no_number_is_cut_at_80_columns(monkeypatch, capsys, drawn_elsewhere):
    _, out, _ = run(monkeypatch, capsys, "ratios", drawn_elsewhere, "--bins", "2", width=80)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    found = gs.ratio_diagnostics(gs.read_measurement(drawn_elsewhere), n_bins=2)
    for table in (ratio_table(found.to_frame()), clipping_table(found.clipping_frame())):
        (_, *headings), rows = table.cells("plain")
        for written in (*headings, *(cell for _, *cells in rows for cell in cells)):
            assert written in out


def test_as_json(monkeypatch, capsys, drawn_elsewhere):
    code, out, _ = run(monkeypatch, capsys, "ratios", drawn_elsewhere, "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["ratio"] for row in found["ratios"][:3]] == ["token", "product", "geometric_mean"]
    assert found["ratios"][1]["chi_squared"] > 0.05
    assert {"grpo", "dapo"} <= {row["recipe"] for row in found["clipping"]}


def test_without_the_sampler_s_log_probabilities(monkeypatch, capsys, measured):
    code, _, err = run(monkeypatch, capsys, "ratios", measured)
    assert code == 1
    assert "ratios need the log-probabilities of sampler and scorer" in err
