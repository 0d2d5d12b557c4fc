"""The commands that split gradients by success rate and by length."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
from command_line import run

import gradstats as gs


def test_by_success(monkeypatch, capsys, measured, tmp_path):
    code, out, err = run(monkeypatch, capsys, "by-success", measured, "rloo", "grpo", "--out", tmp_path / "s.csv")
    assert code == 0
    assert "scale of kept groups" in out
    assert "forms groups of 4 completions" in " ".join(err.split())
    expected = gs.variance_by_success(gs.read_measurement(measured), ["rloo", "grpo"]).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "s.csv"), expected, check_dtype=False)
    code, out, err = run(monkeypatch, capsys, "by-success", measured, "rloo", "--group-size", 2, "--bins", 1, "--json")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["n_prompts"], row["group_size"], row["scale"]) == (30, 2, 1)


def test_by_success_with_the_exact_rates_of_a_column(monkeypatch, capsys, measured, tmp_path):
    known = gs.read_measurement(measured)
    frame = known.rollouts.frame.assign(rate=np.repeat(np.linspace(0, 1, 30), 8))
    replace(known, rollouts=gs.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    words = ("by-success", tmp_path / "measurement", "rloo", "--bins", 3, "--json")
    code, out, err = run(monkeypatch, capsys, *words, "--success", "rate")
    assert code == 0, err
    assert [row["n_prompts"] for row in json.loads(out)["rows"]] == [10, 10, 10]
    code, _, err = run(monkeypatch, capsys, *words, "--success", "p")
    assert code == 1
    assert "--success p: the rollouts have no such column" in err


def test_allocate(monkeypatch, capsys, measured, tmp_path):
    words = ("allocate", measured, "rloo", "--tokens", 5000, "--group-sizes", 2, 4, 32)
    code, out, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "a.csv")
    assert code == 0, err
    assert "rloo, 32* × " in out
    assert "has the lowest noise at 5,000 tokens" in " ".join(err.split())
    expected = gs.allocate(gs.read_measurement(measured), ["rloo"], tokens=5000, group_sizes=[2, 4, 32]).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), expected, check_dtype=False)
    code, _, err = run(monkeypatch, capsys, "allocate", measured, "rloo", "--tokens", 0)
    assert code == 1
    assert "tokens=0.0 must be a positive number of completion tokens" in err
