"""Token results from the command line: printed, written, read back and drawn."""

from __future__ import annotations

import json
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from command_line import run as run_for_saved_tokens
from probed_policies import enumerated, probed
from saved_runs import save_run
from scipy import stats

import gradstats as gs
from gradstats.analyses import registry
from gradstats.config.experiment import Experiment, FiguresSection
from gradstats.report.figures import draw_run_for_report
from gradstats.report.page import report_page
from gradstats.report.saved_results import (
    KEPT_FILES,
    completion_means,
    differing_settings,
    enclosing_run,
    is_recorded_experiment,
    is_run_directory,
    read_added,
    read_frame,
    read_kept,
    read_recorded_experiment,
    read_results,
    record_tables,
    refuse_changed_tables,
    refuse_inside_run,
    run_labels,
    save_frame,
    save_kept,
    table_checksums,
    write_recorded_experiment,
    writing_into,
)
from gradstats.stats import fit_length_scaling
from gradstats.system.files import read_json, write_csv, write_json
from gradstats.system.lock import LOCK, LockedError, only_writer


def test_means_over_prompts_have_students_interval(tmp_path):
    folder = save_run(tmp_path / "run")
    sizes = {"n_prompts": 15, "n_sequences": 60, "n_truncated": 3}
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | sizes)
    run = read_results(folder)
    assert run.points is not None
    means = completion_means(run)
    assert (means["n_prompts"], means["n_completions"], means["truncated_share"]) == (15, 60, 0.05)
    each = run.points.groupby("prompt_id")["reward"].mean().to_numpy()
    half = stats.t.ppf(0.975, 14) * each.std(ddof=1) / np.sqrt(15)
    assert means["mean_reward"] == pytest.approx(each.mean())
    assert means["mean_reward_low"] == pytest.approx(each.mean() - half)
    assert means["mean_reward_high"] == pytest.approx(each.mean() + half)


def test_what_is_not_recorded_is_nan(tmp_path):
    folder = save_run(tmp_path / "run")
    (folder / "tables" / "length_scaling.csv").unlink()
    means = completion_means(read_results(folder))
    assert all(np.isnan(value) for value in means.values())


SETTINGS = "name: mine\npolicy:\n  name: embedded\nprompts:\n  source: embedded\n  seed: 3\n"


def test_it_is_read_back_and_a_change_is_refused(tmp_path):
    path = tmp_path / "experiment.yaml"
    write_recorded_experiment(path, SETTINGS)
    assert is_recorded_experiment(path)
    assert read_recorded_experiment(path).prompts.seed == 3
    text = path.read_bytes()
    renamed = text.replace(b"sha256", b"sha257")
    for changed in (text.replace(b"seed: 3", b"seed: 7"), text.replace(b"name", b"\xffame", 1), renamed):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="has changed since it was written"):
            read_recorded_experiment(path)


def test_one_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(SETTINGS)
    assert not is_recorded_experiment(path)
    assert read_recorded_experiment(path).prompts.seed == 3


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


@pytest.fixture
def path(tmp_path):
    run = save_run(tmp_path / "run")
    experiment = Experiment.model_validate({"name": "r", "policy": {"name": "p"}, "prompts": {"source": "embedded"}})
    write_recorded_experiment(run / "experiment.yaml", experiment.to_yaml())
    return run


def test_a_run_is_known_by_its_recorded_experiment(path, tmp_path):
    assert is_run_directory(path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "experiment.yaml").write_text((path / "experiment.yaml").read_text().rpartition("#")[0])
    assert not is_run_directory(tmp_path / "mine")
    (tmp_path / "mine" / "rollouts").mkdir()
    (tmp_path / "mine" / "rollouts" / "plan.json").write_text("{}")  # of version 0.1
    assert is_run_directory(tmp_path / "mine")


def test_the_run_that_a_path_lies_in(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "tables").symlink_to(path / "tables")
    assert (
        enclosing_run(path) == enclosing_run(path / "new" / "a.csv") == enclosing_run(tmp_path / "tables" / "a") == path
    )
    assert enclosing_run(tmp_path / "link" / "a.csv") == tmp_path / "link"
    assert enclosing_run(tmp_path / "a.csv") is None


def test_writers_into_a_run_hold_its_lock(path, tmp_path):
    with writing_into(path / "tables" / "new.csv"):
        assert (path / LOCK).exists()
        for target in (path, path / "report.html"):
            with pytest.raises(LockedError, match=f"another process is working on {path}"), writing_into(target):
                pass
    assert not (path / LOCK).exists()
    with writing_into(tmp_path / "new.csv"):
        assert sorted(tmp_path.iterdir()) == [path]


def test_a_run_with_links_is_not_written_into(path, tmp_path):
    (path / "report.html").symlink_to(tmp_path / "thesis.html")
    with pytest.raises(ValueError, match=r"report\.html is a symbolic link"), writing_into(path / "new.csv"):
        pass
    assert not (path / LOCK).exists()


def test_what_belongs_to_a_run_is_refused_and_what_is_new_is_not(path, tmp_path):
    for out in (path, path / "alpha.json", path / "tables"):
        with pytest.raises(FileExistsError, match=f"{out} belongs to the run {path}: choose another path"):
            refuse_inside_run(out)
        refuse_inside_run(out, source=path)
    refuse_inside_run(path / "new.csv")
    refuse_inside_run(tmp_path / "new.csv")
    with only_writer(path), pytest.raises(LockedError, match="another process is working on"):
        refuse_inside_run(path / "new.csv")


def curve(value=1.0):
    frame = pd.DataFrame({"value": [0.0, value], "ratio": [1.0, 0.5]})
    frame.attrs |= {"curve": "kimi", "parameter": "tau", "minimiser": float("nan")}
    return frame


def test_a_frame_comes_back_with_its_attributes(tmp_path):
    stem = tmp_path / "tables" / "curve_kimi_tau"
    table, about = save_frame(curve(), stem)
    assert json.loads(about.read_text())["minimiser"] is None
    again = read_frame(table)
    pd.testing.assert_frame_equal(again, curve(), check_dtype=False)
    assert again.attrs["parameter"] == "tau"
    assert list(read_added(tmp_path)) == ["curve_kimi_tau"]


def test_other_numbers_replace_only_on_request(tmp_path):
    save_frame(curve(), tmp_path / "curve_a")
    save_frame(curve(), tmp_path / "curve_a", overwrite=False)
    with pytest.raises(FileExistsError, match="finished result with tau = 0, 1, not 0, 2: replace it with"):
        save_frame(curve(2.0), tmp_path / "curve_a", overwrite=False)
    save_frame(curve(2.0), tmp_path / "curve_a")
    assert read_frame(tmp_path / "curve_a.csv")["value"][1] == 2.0


def test_files_of_the_user_stay(tmp_path):
    (tmp_path / "curve_a.csv").write_text("mine\n1\n")
    with pytest.raises(FileExistsError, match="an earlier table of this command"):
        save_frame(curve(), tmp_path / "curve_a")
    (tmp_path / "curve_b.json").write_text("{}")
    with pytest.raises(FileExistsError, match="the settings of an earlier table"):
        save_frame(curve(), tmp_path / "curve_b")


def test_a_broken_file_is_named(tmp_path):
    table, about = save_frame(curve(), tmp_path / "curve_a")
    about.write_text("{")
    with pytest.raises(ValueError, match=r"curve_a\.csv cannot be read"):
        read_frame(table)


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
    assert (run.published, run.kept, run.table("alpha_by_block"), run.energy_fit) == ("gloeckle2026", {}, None, None)
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
    blocks = run.table("alpha_by_block")
    assert blocks is not None
    assert blocks.to_dict("records") == [{"block": "total", "alpha": 0.5}]
    assert {frame.attrs["metric"] for frame in (blocks, *run.breakdowns.values())} == {"euclidean"}
    # Of two prompts no block has an interval, and the file no number.
    without_ends = [
        {"block": block, "alpha": at, "alpha_low": None, "alpha_high": None, "share_of_sq_norm": at}
        for block, at in (("a", 0.4), ("b", 0.6))
    ]
    write_json(folder / "alpha.json", alpha | {"by_block": without_ends})
    said = read_results(folder).table("alpha_by_block")
    assert said is not None
    assert said.attrs["sentence"] == "α lies between 0.4 (a) and 0.6 (b); b holds 60% of ‖S‖²."
    write_json(folder / "alpha.json", alpha | {"by_block": [{"block": "total", "alpha": 0.5}], "metric": "adam(eps=1)"})
    run = read_results(folder)
    blocks = run.table("alpha_by_block")
    assert blocks is not None
    assert {frame.attrs["metric"] for frame in (blocks, *run.breakdowns.values())} == {"adam(eps=1)"}


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
def test_a_broken_file_is_named_of_saved_results(tmp_path, name, message):
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


mpl.use("Agg")
TOKENS = registry.get("tokens")
FIGURES = ("token_energy", "concentration", "token_correlation", "proxy")


@pytest.fixture(scope="module")
def measured():
    policy = enumerated()
    batch, _, scores = policy.sample(40, 3, 0)
    return probed(batch, scores, 32, 1, np.random.default_rng(0))


@pytest.fixture(scope="module")
def quality(measured):
    return gs.proxy_quality(measured)


@pytest.fixture
def folder(measured, tmp_path):
    """A run directory that contains only a measurement."""
    (tmp_path / "run").mkdir()
    measured.save(tmp_path / "run" / "measurement")
    return tmp_path / "run"


def test_the_command_prints_and_writes_nothing_into_the_run(monkeypatch, capsys, folder):
    before = sorted(folder.rglob("*"))
    code, out, err = run_for_saved_tokens(monkeypatch, capsys, "ask", folder, "tokens")
    assert code == 0, err
    assert "the heaviest token of a completion holds a share" in " ".join(out.split())
    assert "the rest from 32 probes" in " ".join(out.split())
    assert "last_layer" in out
    code, out, err = run_for_saved_tokens(monkeypatch, capsys, "ask", folder / "measurement", "tokens", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [row["proxy"] for row in told["rows"]] == ["logit", "last_layer", "entropy", "surprisal"]
    assert sum(row["profile"] == "concentration" for row in told["token_profiles"]) == 6
    assert sorted(folder.rglob("*")) == before


class Killed(BaseException):
    """In place of a signal that ends the process."""


@pytest.mark.parametrize("n_tables", [0, 1, 3])
def test_what_a_killed_process_leaves_belongs_to_the_run_and_is_whole(quality, folder, monkeypatch, n_tables):
    (folder / "rollouts").mkdir()  # else it counts as a copy of a run's results
    write_json(folder / "manifest.json", {"files": ["alpha.json"], "checksums": {}})
    save_kept(TOKENS, quality, folder, 0.9)
    written = []

    def killed(path, *arguments, **options):
        if len(written) == n_tables:
            raise Killed
        written.append(path)
        write_csv(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("gradstats.report.saved_results.write_csv", killed)
        with pytest.raises(Killed):
            save_kept(TOKENS, quality, folder, 0.95)
    assert set(KEPT_FILES) <= set(read_json(folder / "manifest.json")["files"])
    read_results(folder)  # refuses a table with another checksum
    save_kept(TOKENS, quality, folder, 0.95)
    csv_files = {name for name in KEPT_FILES if name.endswith(".csv")}
    assert set(read_json(folder / "manifest.json")["checksums"]) == csv_files


def test_without_probes_it_says_what_to_measure(monkeypatch, capsys, measured, tmp_path):
    from dataclasses import replace

    replace(measured, token_projections=None).save(tmp_path / "plain")
    code, _, err = run_for_saved_tokens(monkeypatch, capsys, "ask", tmp_path / "plain", "tokens")
    assert code == 1
    assert "measure with token_probes=…, for example 32" in err


def test_what_is_saved_is_read_back(quality, tmp_path):
    save_kept(TOKENS, quality, tmp_path)
    proxies, bins, traces, sample = read_kept(tmp_path).values()
    pd.testing.assert_frame_equal(proxies, quality.to_frame(), rtol=1e-5, check_dtype=False)
    assert proxies.attrs["n_probes"] == 32
    drawn = {one.name: one.rows(bins) for one in TOKENS.figures if one.table == "token_profiles"}
    for figure, name in (("token_correlation", "correlation"), ("concentration", "concentration")):
        table = getattr(quality, name).to_frame()
        pd.testing.assert_frame_equal(drawn[figure], table[drawn[figure].columns], rtol=1e-5, check_dtype=False)
    assert traces["sequence"].nunique() >= 2
    assert (traces["energy_low"] <= traces["energy"] + 1e-12).all()
    assert len(sample) == len(quality.tokens)
    assert read_kept(tmp_path / "nowhere") == {}
    (tmp_path / "token_profiles.csv").unlink()
    with pytest.raises(ValueError, match="cannot be read .* repeat `gradstats run`"):
        read_kept(tmp_path)


def test_a_run_with_energies_is_drawn_and_reported_with_them(measured, quality, folder):
    report = gs.alpha_report(measured)
    write_json(folder / "alpha.json", report.summary())
    points = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(
        length=measured.lengths, sq_norm=measured.sq_norms, energy=[e.sum() for e in measured.token_energy]
    )
    (folder / "tables").mkdir()
    points.to_csv(folder / "tables" / "length_scaling.csv", index=False)
    save_kept(TOKENS, quality, folder)
    results = read_results(folder)
    assert results.energy_fit is not None
    assert results.energy_fit.alpha == pytest.approx(gs.stats.fit_energy_scaling(measured).alpha)
    drawn = draw_run_for_report(results, folder / "figures", FiguresSection(formats=["svg"]))
    assert {"alpha_energy", *FIGURES} <= {path.stem for path in drawn.paths}
    page = report_page(results, drawn.svgs)
    assert "Energy of each token along completions of typical lengths" in page
    assert re.search(r"gradstats ask \S+ tokens", page)
