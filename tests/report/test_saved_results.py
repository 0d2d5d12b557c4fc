"""The saved numbers of a run, read back."""

from __future__ import annotations

import re

import pytest
from saved_runs import save_run

from gradstats.config.experiment import FiguresSection
from gradstats.report.saved_results import differing_settings, read_results, run_labels
from gradstats.stats import fit_length_scaling
from gradstats.system.files import read_json, write_json


def test_everything_that_was_written_is_read(tmp_path):
    run = read_results(save_run(tmp_path / "run", length_scaling={"published": "gloeckle2026"}))
    assert run.name == "saved <run>"
    assert set(run.breakdowns) == {"group_sizes", "equivalent_group_size", "allocation", "length_bins", "success_bins"}
    assert run.variance is not None
    assert run.variance.attrs["reference"] == "rloo"
    assert run.alpha is not None
    assert run.fit is not None
    assert run.points is not None
    expected = fit_length_scaling(
        lengths=run.points["length"], sq_norms=run.points["sq_norm"], groups=run.points["prompt_id"]
    )
    assert run.fit.alpha == expected.alpha == pytest.approx(run.alpha["alpha"])
    assert (run.published, run.tokens, run.by_block, run.energy_fit) == ("gloeckle2026", None, None, None)
    assert run.manifest["remarks"] == ["a remark"]


def test_summed_energies_and_blocks_are_read_where_they_were_measured(tmp_path):
    folder = save_run(tmp_path / "run")
    points = read_results(folder).points
    assert points is not None
    points.assign(energy=points["length"] ** 2.0).to_csv(folder / "tables" / "length_scaling.csv", index=False)
    alpha = read_json(folder / "alpha.json")
    write_json(folder / "alpha.json", alpha | {"by_block": [{"block": "total", "alpha": 0.5}]})
    run = read_results(folder)
    assert run.energy_fit is not None
    assert run.energy_fit.alpha == pytest.approx(1.0)
    assert run.by_block is not None
    assert run.by_block.to_dict("records") == [{"block": "total", "alpha": 0.5}]
    assert {frame.attrs["metric"] for frame in (run.by_block, *run.breakdowns.values())} == {"euclidean"}
    write_json(folder / "alpha.json", alpha | {"by_block": [{"block": "total", "alpha": 0.5}], "metric": "adam(eps=1)"})
    run = read_results(folder)
    assert run.by_block is not None
    assert {frame.attrs["metric"] for frame in (run.by_block, *run.breakdowns.values())} == {"adam(eps=1)"}


def test_the_style_of_the_figures_is_that_of_the_experiment(tmp_path):
    style = {"venue": "acl", "column": "full", "theme": "dark", "formats": ["svg"]}
    assert read_results(save_run(tmp_path / "run", figures=style)).figure_style == FiguresSection(**style)
    copy = save_run(tmp_path / "copy")
    (copy / "experiment.yaml").unlink()
    assert read_results(copy).figure_style == FiguresSection()


def test_a_copy_of_the_results_needs_neither_experiment_nor_folder_of_tables(tmp_path):
    folder = save_run(tmp_path / "run")
    for table in (folder / "tables").iterdir():
        table.rename(folder / table.name)
    for name in ("experiment.yaml", "manifest.json"):
        (folder / name).unlink()
    run = read_results(folder)
    assert run.name == "run"
    assert (run.settings, run.manifest) == ({}, {})
    assert run.points is not None
    assert len(run.points) == 60


def test_the_sampler_follows_the_policys_temperature(tmp_path):
    run = read_results(save_run(tmp_path / "run", policy={"name": "models/p", "temperature": 0.6}))
    assert run.settings["sampling.temperature"] == 0.6


def test_runs_are_labelled_by_the_settings_in_which_they_differ(tmp_path):
    one = read_results(save_run(tmp_path / "one", name="same"))
    other = read_results(save_run(tmp_path / "two", name="same", policy={"name": "models/q"}, sampling={"top_k": 20}))
    assert differing_settings([one, other]) == {"policy.name": ["models/p", "models/q"], "sampling.top_k": [0, 20]}
    assert run_labels([one, other]) == ["one (policy p, top k 0)", "two (policy q, top k 20)"]
    assert run_labels([one]) == ["same"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "is not a run directory: it holds neither alpha.json nor variance.csv; `gradstats run EXPERIMENT --out"),
        (["experiment.yaml"], "is an unfinished run: it holds neither alpha.json nor variance.csv; `gradstats run /"),
    ],
)
def test_a_folder_without_results_names_the_command(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(FileNotFoundError, match=message):
        read_results(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent is not a run directory: create one with `gradstats run"):
        read_results(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alpha.json", r"alpha\.json cannot be read as JSON .* repeat the command that wrote it"),
        ("variance.csv", r"variance\.csv cannot be read as CSV .*: repeat the run"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, message):
    folder = save_run(tmp_path / "run")
    (folder / name).write_text("")
    with pytest.raises(ValueError, match=message):
        read_results(folder)


def test_a_wrong_setting_is_reported_with_its_file(tmp_path):
    folder = save_run(tmp_path / "run")
    path = folder / "experiment.yaml"
    path.write_text(path.read_text() + "\ncolour: red\n")
    message = f"the experiment file {path} has wrong settings: an experiment has no setting 'colour': it has name, "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_results(folder)


@pytest.mark.parametrize(
    ("file", "text", "lacks"),
    [
        ("variance.csv", "name,trace_cov\nrloo,1\n", r"variance\.csv lacks estimator: restore it"),
        (
            "alpha.json",
            '{"alpha": 1.0, "n": 4}',
            r"alpha\.json lacks alpha_low, alpha_high: restore it from a copy, or repeat the run",
        ),
    ],
)
def test_a_file_without_what_every_version_wrote_is_named(tmp_path, file, text, lacks):
    (save_run(tmp_path / "run") / file).write_text(text)
    with pytest.raises(ValueError, match=lacks):
        read_results(tmp_path / "run")
