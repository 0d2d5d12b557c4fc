"""The changelog has one place for each kind of change, and its lines can be read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
MOST_CHARACTERS = 600


def test_each_release_lists_kinds_of_change_once():
    releases = re.split(r"^## ", TEXT, flags=re.M)[1:]
    assert [release.split("\n")[0] for release in releases] == ["Unreleased", "0.1.0"]
    for release in releases:
        kinds = re.findall(r"^### (.*)", release, re.M)
        assert kinds == [kind for kind in ("Added", "Changed", "Fixed") if kind in kinds]


def test_entries_are_short_and_listed_once():
    entries = [" ".join(entry.split()) for entry in re.split(r"^- |^#.*", TEXT, flags=re.M)]
    assert [entry for entry in entries if len(entry) > MOST_CHARACTERS] == []
    assert len(set(entries)) == len(entries) - entries.count("") + 1


def test_templates_of_issues_name_what_there_is():
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    report = (folder / "bug_report.md").read_text("utf-8")
    assert "`gradstats env`" in report
    assert "GRADSTATS_TRACEBACK" in (ROOT / "gradstats" / "cli" / "errors.py").read_text("utf-8")
    assert "gradstats.estimators.register" in (folder / "estimator_request.md").read_text("utf-8")
