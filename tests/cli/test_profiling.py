"""Profiles of policies side by side, from the command line."""

from __future__ import annotations

import json
import warnings

import pandas as pd
import pytest
from command_line import run

import gradstats
from gradstats.config.sections import SamplingSection


def test_measured_folders_are_profiled_side_by_side_and_written(monkeypatch, capsys, measured, tmp_path):
    other = tmp_path / "other"
    gradstats.read_measurement(measured).save(other)
    words = ("profile", measured, other, "--out", tmp_path / "p", "--confidence-level", 0.9)
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    heading = next(line for line in out.splitlines() if "quantity" in line)
    assert heading.split() == ["quantity", "measurement", "other"]
    assert "median length, tokens" in out
    for suffix in ("tex", "md", "csv"):
        assert f"→ {tmp_path / f'p.{suffix}'}" in out
        assert (tmp_path / f"p.{suffix}").exists()
    table = pd.read_csv(tmp_path / "p.csv")
    assert set(table["policy"]) == {"measurement", "other"}


def test_the_numbers_are_those_of_profile_policy(monkeypatch, capsys, measured):
    code, out, err = run(monkeypatch, capsys, "profile", measured, "--json", "--confidence-level", 0.9)
    assert code == 0, err
    with warnings.catch_warnings(record=True, action="always") as caught:
        expected = gradstats.profile_policy(gradstats.read_measurement(measured)).to_frame(0.9)
    assert any("150 tokens" in str(warning.message) for warning in caught)
    assert all(f"note: {warning.message}" in err for warning in caught)
    rows = json.loads(out)["rows"]
    assert [row["quantity"] for row in rows] == expected["quantity"].tolist()
    for row, value, low in zip(rows, expected["value"], expected["low"], strict=True):
        # NaN is null
        assert row["value"] == (None if pd.isna(value) else pytest.approx(value))
        assert row["low"] == (None if pd.isna(low) else pytest.approx(low))


def test_a_policy_is_sampled_with_the_options(monkeypatch, capsys, measured):
    seen = {}

    def measurement(name, policy, prompts, sampling, *, progress):
        seen[name] = (policy, prompts, sampling, progress)
        return gradstats.read_measurement(measured)

    monkeypatch.setattr("gradstats.runs.profiles.measurement_for_profile", measurement)
    words = ("profile", "folder/a", "b", "--group-size", 2, "--seed", 3, "--n", 4, "--prompts", "p.jsonl")
    words += ("--prompt-settings", "answer_format=hashes", "--policy-settings", "temperature=0.6", "--no-progress")
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    assert list(seen) == ["folder/a", "b"]
    policy, prompts, sampling, progress = seen["folder/a"]
    assert (policy.name, policy.temperature) == ("folder/a", 0.6)
    assert (prompts.source, prompts.n, prompts.seed) == ("p.jsonl", 4, 3)
    assert prompts.settings == {"answer_format": "hashes"}
    assert sampling == SamplingSection(group_size=2, seed=3)
    assert progress is False


def test_without_a_source_the_command_says_what_it_needs(monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "profile")
    assert code == 1
    assert "name at least one run directory or policy: gradstats profile RUN_OR_POLICY …" in err
