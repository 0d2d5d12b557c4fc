"""The figures folder: redrawing from stored numbers, and the check for outdated figures."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from programs import program
from saved_runs import save_answer, save_run, saved_sweep

from gradstats.answers import Answer
from gradstats.config.experiment import find_experiment, read_experiment
from gradstats.config.options import read_label
from gradstats.estimators import recipes, registry
from gradstats.report.saved_results import read_results
from gradstats.system.files import write_json

FIGURES = Path(__file__).parent.parent / "figures"


@pytest.fixture(scope="module")
def figures():
    return program("figures/redraw.py")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "mine", name="mine")


def test_what_is_committed_is_as_new_as_its_numbers(figures):
    assert figures.complaints(FIGURES) == []


def test_what_is_committed_is_light():
    numbers = [path for path in FIGURES.rglob("*") if path.is_file() and path.suffix not in (".png", ".pyc")]
    assert len(numbers) <= 420  # and some 35 pictures that pages show
    assert sum(path.stat().st_size for path in numbers) < 7e6
    assert {path.suffix for path in numbers} == {".csv", ".json", ".yaml", ".md", ".parquet", ".py"}


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in FIGURES.glob("*/experiment.yaml")), ids=lambda one: one.name
)
def test_every_answer_of_a_committed_run_can_be_read(folder):
    assert read_results(folder).left_out == ()  # and none that is named beside another is missing


def test_committed_profiles_state_the_level_of_their_intervals():
    levels = [
        Answer.read(path.with_suffix("")).about["confidence_level"]
        for path in FIGURES.glob("*/tables/token_profiles.json")
    ]
    assert set(levels) == {0.95}


def test_taken_redrawn_and_checked(figures, run_directory, tmp_path):
    folder = figures.take(run_directory, tmp_path)
    taken = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    written = {path.relative_to(run_directory) for path in run_directory.rglob("*") if path.is_file()}
    assert taken == {path for path in written if path.suffix in (".csv", ".json") or path.name == "experiment.yaml"}
    numbers = {path: (folder / path).read_bytes() for path in taken}
    paths = list(figures.redraw_all(tmp_path))
    assert {"length_scaling.png", "variance.png", "variance_bias.png"} <= {path.name for path in paths}
    assert {name: (folder / name).read_bytes() for name in numbers} == numbers
    # No table lies beside a picture whose rows an answer holds.
    assert {path for path in folder.rglob("*") if path.is_file()} == {folder / name for name in numbers} | set(paths)
    assert figures.complaints(tmp_path) == []
    first = [path.read_bytes() for path in paths]
    (folder / "stray.png").touch()
    assert [path.read_bytes() for path in figures.redraw(folder)] == first
    assert not (folder / "stray.png").exists()
    # Numbers that change are newer than the pictures.
    text = (folder / "variance.csv").read_text()
    (folder / "variance.csv").write_text(text.replace("1.3", "1.4", 1))
    (complaint,) = figures.complaints(tmp_path)
    assert complaint == f"pictures in {folder} are older than its numbers: redraw them with `make figures`"


def test_of_some_runs_the_answers_that_pages_use_are_taken(figures, tmp_path):
    run = save_run(tmp_path / "runs" / "qwen_stale", name="qwen_stale")
    (tmp_path / "figures").mkdir()
    folder = figures.take(run, tmp_path / "figures")
    left_out = {path.stem for path in figures.numbers_in(run)} - {path.stem for path in figures.numbers_in(folder)}
    assert {path.stem for path in figures.numbers_in(folder)} == {"alpha", "variance"}
    assert left_out
    assert read_results(folder).left_out == ()
    figures.leave_out_beside(folder / "alpha.json", ["alpha"])
    assert Answer.read(folder / "alpha").further == {}


def test_rows_have_the_names_that_the_run_gives_them_and_figures_the_venue_s_width(figures, monkeypatch, tmp_path):
    styles = []
    monkeypatch.setattr(figures, "draw_run", lambda results, out, style: styles.append(style) or [])
    for run, label in (("embedded_resolved", "RLOO over own length"), ("qwen_mismatch", None)):
        figures._drawn(FIGURES / run, tmp_path, "neurips")
        assert next(iter(styles[-1].labels.values()), None) == label
        assert (styles[-1].venue, styles[-1].column) == ("neurips", None)


def test_a_sweep_is_joined_drawn_and_watched(figures, tmp_path):
    sweep = saved_sweep(tmp_path / "runs" / "temperatures")
    root = tmp_path / "figures"
    root.mkdir()
    folder = figures.take(sweep, root)
    cells = ["temperature=0.6", "temperature=1.0"]
    assert list(dict.fromkeys(pd.read_csv(folder / "sweep.csv")["cell"])) == cells
    assert list(figures.read_json(folder / "manifest.json")["cells"]) == cells
    assert folder / "sampling_temperature.png" in list(figures.redraw_all(root))
    # The reference has no line of its own.
    assert figures.read_json(folder / "manifest.json")["of_table"]["reference"] == "rloo"
    assert figures.complaints(root) == []
    text = (folder / "sweep.csv").read_text()
    (folder / "sweep.csv").write_text(text.replace("1.3", "1.4", 1))
    (complaint,) = figures.complaints(root)
    assert "are older than its numbers" in complaint


def test_blocks_of_a_sweep_over_metrics_are_drawn_side_by_side(figures, tmp_path):
    sweep = tmp_path / "runs" / "metrics"
    cells = []
    for at, metric in enumerate(("euclidean", "adam")):
        settings = {"measurement.metric": metric} | ({"measurement.second_moments": "embedded"} if at else {})
        cells.append({"folder": f"metric={metric}", "settings": settings})
        measurement = {name.removeprefix("measurement."): value for name, value in settings.items()}
        run = save_run(sweep / f"metric={metric}", name=metric, measurement=measurement)
        ends = {"alpha_low": 0.4, "alpha_high": 0.9}
        rows = [{"block": name, "alpha": 0.6, **ends, "share_of_sq_norm": 0.5 + at / 4} for name in ("head", "total")]
        save_answer(run, Answer("alpha_by_block", pd.DataFrame(rows), {"metric": metric}))
    varied = ["measurement.metric", "measurement.second_moments"]
    write_json(sweep / "sweep.json", {"name": "metrics", "varied": varied, "cells": cells})
    root = tmp_path / "figures"
    root.mkdir()
    folder = figures.take(sweep, root)
    table = pd.read_csv(folder / "blocks.csv")
    assert list(table["measurement.metric"]) == ["euclidean"] * 2 + ["adam"] * 2
    assert list(table["share_of_sq_norm"]) == [0.5, 0.5, 0.75, 0.75]
    names = {path.name for path in figures.redraw(folder)}
    assert {"alpha_by_block.png", "measurement_metric.png"} <= names
    assert (folder / "blocks.csv").exists()


@pytest.mark.parametrize("begun", [False, True])
def test_an_unfinished_sweep_is_not_taken(figures, tmp_path, begun):
    sweep = saved_sweep(tmp_path / "temperatures", missing=[] if begun else ["temperature=0.6"])
    if begun:
        (sweep / "temperature=0.6" / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no results of temperature=0\.6 yet: repeat `gradstats run`"):
        figures.take(sweep, tmp_path)


def test_an_unfinished_run_is_not_taken(figures, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a finished run: it has no manifest"):
        figures.take(tmp_path, tmp_path)


@pytest.mark.filterwarnings("ignore:the runs differ")
def test_the_zoo_is_drawn_once_both_of_its_runs_are_there(figures, tmp_path):
    save_run(tmp_path / "embedded_zoo", name="embedded_zoo")
    assert figures.redraw_zoo(tmp_path) == []
    save_run(tmp_path / "embedded_zoo_stale", name="embedded_zoo_stale")
    assert figures.redraw_zoo(tmp_path) == [tmp_path / "zoo" / "zoo.png", tmp_path / "zoo" / "rows.md"]
    assert "zoo" in figures.sources(tmp_path)
    rows = (tmp_path / "zoo" / "rows.md").read_text()
    assert rows.count("| `<b>mine</b>` |") == 2  # no relative noise in either run
    assert "| `rloo` |" not in rows
    before = figures.sources(tmp_path)["zoo"]
    numbers = tmp_path / "embedded_zoo_stale" / "variance.csv"
    numbers.write_text(numbers.read_text().replace("1.3", "1.4", 1))
    assert figures.sources(tmp_path)["zoo"] != before


def test_rows_that_are_open_say_why(figures):
    frame = pd.DataFrame(
        {
            "estimator": ["rloo", "recipe:grpo", "pass_at_k"],
            "matched_ratio_low": [1.0, 0.8, np.nan],
            "matched_ratio_high": [1.0, np.inf, np.nan],
            "run": "on-policy",
            "note": ["", "", "so pass_at_k gives every completion weight 0 and its row is NaN"],
        }
    )
    open_rows = [line for line in figures.zoo_rows(frame).partition("## Left out")[0].splitlines() if "| `" in line]
    assert len(open_rows) == 2
    assert "`recipe:grpo` | on-policy | ≥ 0.8 | ‖E ĝ‖² is not resolved above 0" in open_rows[0]
    assert "| – | so pass\\_at\\_k gives every" in open_rows[1]


def test_every_registered_estimator_is_in_the_zoo_or_listed_as_left_out(figures):
    on_policy, stale = (read_experiment(find_experiment(name)).variance.estimators for name in figures.ZOO)
    assert on_policy == stale
    shown = {read_label(label.removeprefix("recipe:"))[0] for label in on_policy}
    assert shown | set(figures.LEFT_OUT) == {*recipes.names(), *registry.names()}
    assert not shown & set(figures.LEFT_OUT)
