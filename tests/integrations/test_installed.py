"""Which trainers are installed."""

import importlib
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

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
    monkeypatch.setattr(installed, "installed", lambda package: found if package == "trl" else None)
    code, out, err = run(monkeypatch, capsys, "check", "--json")
    assert code == 0, err
    assert json.loads(out)["integrations"]["trl"] == state


def test_a_package_that_is_not_installed():
    assert installed.installed("no-such-package-at-all") is None


@pytest.mark.parametrize(
    ("registry", "plugin", "said"),
    [
        ({"grpo": 1, "gradstats/rloo": 2, "gradstats": 3, "gradstatistics": 4}, None, "2 estimators are registered"),
        ({"grpo": 1}, ImportError("another torch"), "no estimator is registered (ImportError: another torch)"),
        ({"grpo": 1}, None, "see VERL_USE_EXTERNAL_PLUGINS"),
        (None, None, "verl cannot be imported (ModuleNotFoundError: No module named 'ray')"),
    ],
)
def test_what_is_said_of_verl_which_does_not_report_a_plugin_that_fails(monkeypatch, registry, plugin, said):
    def import_module(name):
        if name == "verl.trainer.ppo.core_algos":
            if registry is None:
                raise ModuleNotFoundError("No module named 'ray'")
            return SimpleNamespace(ADV_ESTIMATOR_REGISTRY=registry)
        if plugin is not None:
            raise plugin
        return SimpleNamespace()

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(installed, "installed", lambda package: "0.9.1" if package == "verl" else None)
    assert said in installed.integrations()["verl"]
    assert installed.integrations()["verl"].startswith("0.9.1; ")
