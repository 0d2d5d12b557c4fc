"""An answer and a figure that a command adds to a run."""

from functools import cache

import pytest
from comparison_batches import quietly, sized_batch
from saved_runs import save_run

import gradstats as gs
from gradstats.analyses import registry
from gradstats.answers.answer import COMPUTED_WITH
from gradstats.report.added_results import save_addition
from gradstats.report.figures import run_figures
from gradstats.report.page import report_page
from gradstats.report.saved_results import read_results
from gradstats.system import files
from gradstats.system.files import read_json, write_json

NAME = "curve_asymmetric_delta"


@cache
def curve(last=0.5):
    batch, scores = sized_batch()
    found = quietly(gs.variance_curve, batch, "asymmetric(loo=True)", "delta", [-0.5, 0.0, last], scores)
    return registry.get("curve").answer_of(found, 0.95)


@pytest.fixture
def run(tmp_path):
    """A run directory with a manifest, whose figures are SVG."""
    save_run(tmp_path / "run", figures={"formats": ["svg"]})
    for name in ("measurement", "rollouts"):  # else it counts as a copy of a run's results
        (tmp_path / "run" / name).mkdir()
    write_json(tmp_path / "run" / "manifest.json", {"files": ["alpha.json"], "computed_with": {"rewards": "now"}})
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
def test_what_a_killed_process_leaves_is_whole_and_makes_room(run, monkeypatch, n_writes, earlier):
    if earlier:
        save_addition(curve(), run, NAME)
    with monkeypatch.context() as patched:
        kill_after(patched, n_writes)
        with pytest.raises(Killed):
            save_addition(curve(0.75), run, NAME)
    there = read_results(run).answers  # a table beside the rest of another would be refused
    assert (NAME in there) == (n_writes > 1)
    if NAME in there:
        assert there[NAME].frame["value"].tolist() == curve(0.75).frame["value"].tolist()
    paths = save_addition(curve(0.75), run, NAME, overwrite=False)  # nothing of another result is left
    assert read_results(run).answers[NAME].frame["value"].tolist() == curve(0.75).frame["value"].tolist()
    assert set(paths) == set(run.glob(f"*/{NAME}.*"))
    written = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert save_addition(curve(0.75), run, NAME) == []  # asking again changes no file
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == written


def test_a_run_holds_the_curve_in_tables_figures_and_report(run):
    paths = save_addition(curve(), run, NAME)
    names = [path.relative_to(run).as_posix() for path in paths]
    assert names == [f"tables/{NAME}.csv", f"tables/{NAME}.json", f"figures/{NAME}.svg", f"figures/{NAME}.csv"]
    assert read_json(run / "manifest.json")["files"] == ["alpha.json"]
    results = read_results(run)
    assert results.answers[NAME].about[COMPUTED_WITH] == {"rewards": "now"}
    assert NAME in {listed.name for listed, _ in run_figures(results, results.figure_style)}
    assert "asymmetric(loo=True) along delta" in report_page(results)


def test_asking_again_what_a_run_with_values_answered_changes_no_file(run):
    write_json(run / "manifest.json", {"computed_with": {"rewards": "now", "values": "a head"}})
    save_addition(curve(), run, NAME)  # as the run does, which states the values that it has
    assert save_addition(curve(), run, NAME, overwrite=False, uses_values=False) == []


def test_any_folder_takes_table_and_figure(tmp_path):
    paths = save_addition(curve(), tmp_path / "mine", NAME)
    assert [path.suffix for path in paths] == [".csv", ".json", ".pdf", ".png", ".csv"]
    assert all(path.is_file() for path in paths)
