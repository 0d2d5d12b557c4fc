"""What the manifest of a run records of its tables: names, and checksums that show changes."""

from __future__ import annotations

import pytest

from gradstats.report.saved_results import record_tables, refuse_changed_tables, table_checksums
from gradstats.system.files import read_json, write_json


@pytest.fixture
def run(tmp_path):
    """A run directory with two tables, of which the manifest records one."""
    (tmp_path / "rollouts").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"{name}\n1\n")
    write_json(tmp_path / "manifest.json", {"files": ["a.csv"], "checksums": {"a.csv": "sha256"}, "other": 1})
    record_tables(tmp_path, [tmp_path / "a.csv"])
    return tmp_path


def test_tables_are_listed_once_with_their_checksums(run):
    record_tables(run, [run / "b.csv", run / "c.pdf"])
    manifest = read_json(run / "manifest.json")
    assert manifest["files"] == ["a.csv", "b.csv", "c.pdf"]
    assert manifest["checksums"] == table_checksums(run, [run / "a.csv", run / "b.csv"])
    assert manifest["other"] == 1


def test_a_changed_table_is_refused_by_name(run):
    refuse_changed_tables(run)
    (run / "a.csv").write_text("a\n2\n")
    with pytest.raises(ValueError, match=r"a\.csv"):
        refuse_changed_tables(run)
    refuse_changed_tables(run, [run / "b.csv"])


def test_a_table_about_to_be_written_has_no_checksum(run):
    record_tables(run, [run / "a.csv"], {})
    assert read_json(run / "manifest.json")["checksums"] == {}
    (run / "a.csv").write_text("a\n2\n")
    refuse_changed_tables(run)


def test_a_folder_without_manifest_gets_none(tmp_path):
    (tmp_path / "a.csv").write_text("a\n")
    record_tables(tmp_path, [tmp_path / "a.csv"])
    assert not (tmp_path / "manifest.json").exists()
