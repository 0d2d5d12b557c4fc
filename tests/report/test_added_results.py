"""A table and a figure that a command adds to a run."""

from __future__ import annotations

import matplotlib as mpl
from comparison_batches import quietly, sized_batch
from saved_runs import save_run

import gradstats as gs
from gradstats.report.added_results import save_added
from gradstats.report.figures import run_figures
from gradstats.report.page import report_page
from gradstats.report.saved_results import read_results
from gradstats.system.files import read_json, write_json

mpl.use("Agg")
NAME = "curve_asymmetric_delta"


def curve_frame():
    batch, scores = sized_batch()
    return quietly(gs.variance_curve, batch, "asymmetric(loo=True)", "delta", [-0.5, 0.0, 0.5], scores).to_frame()


def test_a_run_holds_the_curve_in_tables_figures_manifest_and_report(tmp_path):
    run = tmp_path / "run"
    save_run(run, figures={"formats": ["svg"]})
    (run / "measurement").mkdir()
    write_json(run / "manifest.json", {"files": ["alpha.json"], "checksums": {}})
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
