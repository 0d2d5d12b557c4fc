"""What a manifest records of versions and hardware."""

from __future__ import annotations

import re
from importlib.metadata import version

from gradstats.system import environment
from gradstats.system.environment import git_commit


def test_versions_hardware_and_commit():
    found = environment.environment()
    assert found["versions"]["numpy"] == version("numpy")
    assert found["hardware"]["cpu_count"] >= 1
    assert found["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["git_commit"])


def test_outside_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "gradstats" / "environment.py"))
    assert git_commit() is None
