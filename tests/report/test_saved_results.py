"""Token results from the command line: printed, written, read back and drawn."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from probed_policies import enumerated, probed
from saved_runs import save_run
from scipy import stats

import gradstats as gs
from gradstats.analyses import registry
from gradstats.answers.answer import COMPUTED_WITH, Answer
from gradstats.config.experiment import Experiment, FiguresSection
from gradstats.report.figures import draw_run_for_report
from gradstats.report.page import report_page
from gradstats.report.saved_results import (
    answer_stems,
    completion_means,
    differing_settings,
    enclosing_run,
    is_recorded_experiment,
    is_run_directory,
    read_recorded_experiment,
    read_results,
    run_labels,
    write_recorded_experiment,
    writing_into,
)
from gradstats.stats import fit_length_scaling
from gradstats.system.files import read_json, write_json
from gradstats.system.lock import LOCK, LockedError


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
    path.write_text(SETTINGS)  # of an earlier version
    assert not is_recorded_experiment(path)
    assert read_recorded_experiment(path).prompts.seed == 3


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


def test_everything_that_was_written_is_read(tmp_path):
    run = read_results(save_run(tmp_path / "run"))
    assert run.name == "saved <run>"
    assert list(run.answers) == [
        "variance", "alpha", "length_scaling", "group_sizes", "equivalent_group_size", "allocation", "length_bins",
        "success_bins",
    ]  # fmt: skip
    assert run.variance.attrs["reference"] == "rloo"
    assert run.answers["variance"].notes == ("a note",)
    expected = fit_length_scaling(
        lengths=run.points["length"], sq_norms=run.points["sq_norm"], groups=run.points["prompt_id"]
    )
    assert run.fit.alpha == expected.alpha == pytest.approx(run.alpha["alpha"])
    assert run.table("alpha_by_block") is None
    assert run.manifest["remarks"] == ["a remark"]


def curve(name="kimi", **about):
    frame = pd.DataFrame({"value": [0.0, 1.0], "ratio": [1.0, 0.5]})
    return Answer("curve", frame, {"curve": name, "parameter": "tau", "minimiser": float("nan"), **about})


def test_answers_of_one_question_follow_one_another(tmp_path):
    folder = save_run(tmp_path / "run")
    for name in ("b", "a"):
        curve(name).save(folder / "tables" / f"curve_{name}_tau")
    run = read_results(folder)
    assert list(run.answers)[-2:] == ["curve_a_tau", "curve_b_tau"]
    assert np.isnan(run.answers["curve_a_tau"].about["minimiser"])


NOW = {"rewards": "now", "values": None}


@pytest.mark.parametrize(
    ("then", "now", "other"),
    [
        (NOW, NOW, None),
        ({"rewards": "before", "values": None}, NOW, "completions or rewards"),
        ({"rewards": "now", "values": "before"}, NOW, "state values"),
        (NOW, NOW | {"values": "new"}, None),  # values that came later do not matter
        (None, NOW, None),
    ],
)
def test_an_answer_of_other_rewards_or_values_is_left_out_and_stays(tmp_path, then, now, other):
    folder = save_run(tmp_path / "run")
    write_json(folder / "manifest.json", {"computed_with": now})
    curve(**({} if then is None else {COMPUTED_WITH: then})).save(folder / "tables" / "curve_kimi_tau")
    if other is None:
        assert "curve_kimi_tau" in read_results(folder).answers
        return
    said = f"curve_kimi_tau is left out, since the run had other {other} then: ask it again"
    with pytest.warns(UserWarning, match=said):
        run = read_results(folder)
    assert "curve_kimi_tau" not in run.answers
    assert (folder / "tables" / "curve_kimi_tau.csv").exists()


def test_an_answer_that_the_experiment_leaves_out_is_not_shown(tmp_path):
    folder = save_run(tmp_path / "run", analyses={"allocation": False})
    assert "allocation" not in read_results(folder).answers


@pytest.mark.parametrize(
    ("file", "text"),
    [*((name, "{") for name in ("tables/allocation.json", "alpha.json", "variance.csv")), ("alpha.json", None)],
)
def test_a_damaged_answer_is_named_and_the_others_are_shown(tmp_path, file, text):
    folder = save_run(tmp_path / "run")
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    name = Path(file).stem
    with pytest.warns(UserWarning, match=rf"^{name} is left out: .*{re.escape(file)}"):
        run = read_results(folder)
    assert name not in run.answers
    assert len(run.answers) >= 6
    assert f"<dt>open</dt><dd>{name} is left out: " in report_page(run, svgs={})
    assert ("" in answer_stems(folder).values()) == file.endswith("json")


def test_style_and_temperature_are_those_of_the_experiment_which_a_copy_of_the_results_may_lack(tmp_path):
    style = {"venue": "acl", "column": "full", "theme": "dark", "formats": ["svg"]}
    folder = save_run(tmp_path / "run", figures=style, policy={"name": "models/p", "temperature": 0.6})
    run = read_results(folder)
    assert run.figure_style == FiguresSection(**style)
    assert run.settings["sampling.temperature"] == 0.6
    for name in ("experiment.yaml", "manifest.json"):
        (folder / name).unlink()
    run = read_results(folder)
    assert (run.name, run.settings, run.manifest, run.figure_style) == ("run", {}, {}, FiguresSection())
    assert len(run.points) == 60


def test_runs_are_labelled_by_the_settings_in_which_they_differ(tmp_path):
    one = read_results(save_run(tmp_path / "one", name="same"))
    other = read_results(save_run(tmp_path / "two", name="same", policy={"name": "models/q"}, sampling={"top_k": 20}))
    assert differing_settings([one, other]) == {"policy.name": ["models/p", "models/q"], "sampling.top_k": [0, 20]}
    assert run_labels([one, other]) == ["one (policy p, top k 0)", "two (policy q, top k 20)"]
    assert run_labels([one]) == ["same"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "is not a run directory: it holds no answers; `gradstats run EXPERIMENT --out"),
        (["experiment.yaml"], "is an unfinished run: it holds no answers; `gradstats run /"),
    ],
)
def test_a_folder_without_results_names_the_command(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(FileNotFoundError, match=message):
        read_results(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent is not a run directory: create one with `gradstats run"):
        read_results(tmp_path / "absent")


def test_a_run_of_an_earlier_version_says_what_analyses_it_again(tmp_path):
    folder = save_run(tmp_path / "run")
    for state in folder.rglob("*.json"):
        write_json(state, {"reference": "rloo"})
    source = folder / "experiment.yaml"
    with pytest.raises(ValueError, match=f"earlier version: `gradstats run {source} --out {folder}` analyses it again"):
        read_results(folder)


def test_without_an_answer_that_can_be_read_one_sentence_names_file_and_command(tmp_path, recwarn):
    folder = save_run(tmp_path / "run")
    states = [state for state in folder.rglob("*.json") if state.name != "manifest.json"]
    for state in states:
        state.write_text("{")
    write_json(folder / "manifest.json", {"computed_with": {}})
    command, file = f"`gradstats run {folder / 'experiment.yaml'} --out {folder}`", f"{folder}/.*json cannot be"
    with pytest.raises(ValueError, match=f"^{folder} holds no answer that can be shown; {command} .*{file}") as error:
        read_results(folder)
    assert str(error.value).count("cannot be read") == 1
    write_json(folder / "manifest.json", {"experiment": "of an earlier version"})
    with pytest.raises(ValueError, match=f"^{folder} was analysed by an earlier version: {command} .*{file}"):
        read_results(folder)
    assert not recwarn.list


def test_a_wrong_setting_is_reported_with_its_file(tmp_path):
    folder = save_run(tmp_path / "run")
    path = folder / "experiment.yaml"
    path.write_text(path.read_text() + "\ncolour: red\n")
    message = f"the experiment file {path} has wrong settings: an experiment has no setting 'colour': it has name, "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_results(folder)


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


def test_what_is_saved_is_read_back(quality, tmp_path):
    TOKENS.answer_of(quality, 0.95).save(tmp_path / "tokens")
    read = Answer.read(tmp_path / "tokens")
    pd.testing.assert_frame_equal(read.frame, quality.to_frame(), rtol=1e-6)
    assert read.about["n_probes"] == 32
    bins, traces, sample = (read.further[name].frame for name in ("token_profiles", "token_traces", "token_sample"))
    assert read.further["token_traces"].about["confidence_level"] == 0.95
    drawn = {one.name: one.rows(bins) for one in TOKENS.figures if one.table == "token_profiles"}
    for figure, name in (("token_correlation", "correlation"), ("concentration", "concentration")):
        table = getattr(quality, name).to_frame()
        pd.testing.assert_frame_equal(drawn[figure], table[drawn[figure].columns], rtol=1e-5, check_dtype=False)
    assert traces["sequence"].nunique() >= 2
    assert (traces["energy_low"] <= traces["energy"] + 1e-12).all()
    assert len(sample) == len(quality.tokens)


def test_a_run_with_energies_is_drawn_and_reported_with_them(measured, quality, folder):
    report = gs.alpha_report(measured)
    (folder / "tables").mkdir()
    registry.get("alpha").answer_of(report, 0.95).save(folder / "alpha", further_in=folder / "tables")
    TOKENS.answer_of(quality, 0.95).save(folder / "tables" / "tokens")
    results = read_results(folder)
    assert results.points is not None
    energies = [energy.sum() for energy in measured.token_energy]
    np.testing.assert_allclose(results.points["energy"], energies, rtol=1e-12)
    drawn = draw_run_for_report(results, folder / "figures", FiguresSection(formats=["svg"]))
    assert {"alpha_energy", *FIGURES} <= {path.stem for path in drawn.paths}
    page = report_page(results, drawn.svgs)
    assert "Energy of each token along completions of typical lengths" in page
    assert re.search(r"gradstats ask \S+ tokens", page)
