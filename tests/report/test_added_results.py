"""A table and a figure that a command adds to a run."""

from __future__ import annotations

from functools import cache

import matplotlib as mpl
import pytest
from comparison_batches import quietly, sized_batch
from saved_runs import save_run

import gradstats as gs
from gradstats.report.added_results import save_added
from gradstats.report.figures import run_figures
from gradstats.report.page import report_page
from gradstats.report.saved_results import read_results
from gradstats.system import files
from gradstats.system.files import read_json, write_json
from gradstats.system.outputs import differing_entry

mpl.use("Agg")
NAME = "curve_asymmetric_delta"


@cache
def curve_frame(last=0.5):
    batch, scores = sized_batch()
    return quietly(gs.variance_curve, batch, "asymmetric(loo=True)", "delta", [-0.5, 0.0, last], scores).to_frame()


@pytest.fixture
def run(tmp_path):
    """A run directory with a manifest, whose figures are SVG."""
    save_run(tmp_path / "run", figures={"formats": ["svg"]})
    for name in ("measurement", "rollouts"):  # else it counts as a copy of a run's results
        (tmp_path / "run" / name).mkdir()
    write_json(tmp_path / "run" / "manifest.json", {"files": ["alpha.json"], "checksums": {}})
    return tmp_path / "run"


class Killed(BaseException):
    """In place of a signal that ends the process."""


def kill_after(monkeypatch, n_writes):
    """Let the process end once it has named so many files."""
    give_name, named = files._give_name, []

    def counted(partial, path, *where):
        if len(named) == n_writes:
            raise Killed
        named.append(path)
        give_name(partial, path, *where)

    monkeypatch.setattr(files, "_give_name", counted)


@pytest.mark.parametrize(("n_writes", "earlier"), [(1, False), (2, False), (1, True), (2, True), (3, True)])
def test_what_a_killed_process_leaves_belongs_to_the_run_and_is_whole(run, monkeypatch, n_writes, earlier):
    old, new = curve_frame(), curve_frame(0.75)
    assert differing_entry(old.attrs, new.attrs) is not None
    if earlier:
        save_added(old, run, NAME)
    with monkeypatch.context() as patched:
        kill_after(patched, n_writes)
        with pytest.raises(Killed):
            save_added(new, run, NAME)
    left = {path.relative_to(run).as_posix() for path in run.glob(f"*/{NAME}.*")}
    assert left <= set(read_json(run / "manifest.json")["files"])
    there = read_results(run).added  # refuses a table with another checksum
    assert list(there) == ([NAME] if n_writes > 2 else [])
    for frame in there.values():
        assert frame["value"].tolist() == new["value"].tolist()
        assert differing_entry(frame.attrs, new.attrs) is None
    paths = save_added(new, run, NAME, overwrite=False)  # nothing of another result is left
    assert read_results(run).added[NAME]["value"].tolist() == new["value"].tolist()
    assert set(paths) == set(run.glob(f"*/{NAME}.*"))


def test_a_run_holds_the_curve_in_tables_figures_manifest_and_report(run):
    paths = save_added(curve_frame(), run, NAME)
    names = [path.relative_to(run).as_posix() for path in paths]
    assert names == [f"tables/{NAME}.csv", f"tables/{NAME}.json", f"figures/{NAME}.svg", f"figures/{NAME}.csv"]
    manifest = read_json(run / "manifest.json")
    assert manifest["files"] == ["alpha.json", *names]
    assert set(manifest["checksums"]) == {name for name in names if name.endswith(".csv")}
    results = read_results(run)
    assert NAME in {listed.name for listed, _, _ in run_figures(results, results.figure_style)}
    assert "asymmetric(loo=True) along delta" in report_page(results)


def test_any_folder_takes_table_and_figure(tmp_path):
    paths = save_added(curve_frame(), tmp_path / "mine", NAME)
    assert [path.suffix for path in paths] == [".csv", ".json", ".pdf", ".png", ".csv"]
    assert all(path.is_file() for path in paths)
