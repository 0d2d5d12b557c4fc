"""Which trainers are installed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from command_line import run

from gradstats.integrations import installed


def test_known_versions_are_those_of_the_extra():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    for package in installed.KNOWN:
        assert installed.known_versions(package) in declared["project"]["optional-dependencies"][package]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ("1.16.0", "1.16.0"),
        ("1.17.0.dev0", "1.17.0.dev0, not among trl>=1.16,<1.17"),
        ("0.9", "0.9, not among trl>=1.16,<1.17"),
        (None, "not installed (extra trl)"),
    ],
)
def test_env_states_them(monkeypatch, capsys, found, state):
    monkeypatch.setattr(installed, "installed", lambda package: found)
    code, out, err = run(monkeypatch, capsys, "env")
    assert code == 0, err
    assert json.loads(out)["integrations"] == {"trl": state}


def test_a_package_that_is_not_installed():
    assert installed.installed("no-such-package-at-all") is None
