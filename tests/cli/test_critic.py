"""The command on state values."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats as gs


@pytest.fixture
def valued(measured, tmp_path):
    """A measurement with both kinds of state values."""
    found, rng = gs.read_measurement(measured), np.random.default_rng(0)
    n_tokens = [len(mask) for mask in found.rollouts.masks]
    of_prefixes = [rng.integers(0, 5, n) / 4 for n in n_tokens]
    replace(found, values=of_prefixes, fitted_values=[rng.random(n) for n in n_tokens]).save(tmp_path / "valued")
    return tmp_path / "valued"


def test_bias_and_explained_variance_are_printed_and_written(monkeypatch, capsys, valued, tmp_path):
    code, out, err = run(monkeypatch, capsys, "critic", valued, "--last-step", "1", "--out", tmp_path / "found")
    assert code == 0, err
    assert "after a wrong step, not recovered" in " ".join(out.split())
    table = pd.read_csv(tmp_path / "found" / "tables" / "critic.csv")
    expected = gs.critic_quality(gs.read_measurement(valued), last_step=1).to_frame()
    np.testing.assert_allclose(table["bias"], expected["bias"])
    assert (tmp_path / "found" / "figures" / "critic.pdf").is_file()
    code, out, _ = run(monkeypatch, capsys, "critic", valued, "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["states"] == "all"


def test_a_run_without_values_is_refused(monkeypatch, capsys, measured):
    code, _, err = run(monkeypatch, capsys, "critic", measured)
    assert code == 1
    assert "critic_quality needs values: make them with gradstats.monte_carlo_values" in " ".join(err.split())
