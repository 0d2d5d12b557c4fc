"""What there is by name, versions and hardware."""

from __future__ import annotations

import json

import matplotlib as mpl
import pytest
from command_line import run

mpl.use("Agg")


@pytest.mark.parametrize("what", ["experiments", "estimators", "data", "rewards"])
def test_lists(monkeypatch, capsys, what):
    code, out, _ = run(monkeypatch, capsys, "list", what)
    expected = {"experiments": "embedded", "estimators": "rloo", "data": "gloeckle2026", "rewards": "math"}
    assert code == 0
    assert expected[what] in out


def test_quantities_are_listed_one_a_line_with_their_files(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "list", "quantities", "--all")
    (line,) = [line.split() for line in out.splitlines() if line.startswith("energy_ratio ")]
    assert code == 0
    assert line == ["energy_ratio", "on_policy", "stats/on_policy.py", "energy", "ratio"]
    _, out, _ = run(monkeypatch, capsys, "list", "quantities")
    assert max(map(len, out.splitlines())) <= 80
    assert any(line.startswith("on_policy: energy_ratio ") for line in out.splitlines())


def test_env_is_json(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "check", "--json")
    assert code == 0
    assert {"torch", "transformers", "gradstats"} <= set(json.loads(out)["versions"])
