"""The analysis step: what it writes, and what it does where the data allow no result."""

import json
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run
from measured_by_hand import breakdowns
from rich.progress import Progress

import gradstats
from gradstats import equivalent_group_size
from gradstats.analyses import registry
from gradstats.analyses.points import load_points
from gradstats.cli.terminal import show_run
from gradstats.config.experiment import VarianceSection
from gradstats.measurement.measurement import read_measurement
from gradstats.report.figures import figures_as_svg
from gradstats.report.saved_results import read_results
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.runs.analysis import analyse
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import regrade_run, run_experiment
from gradstats.system.files import read_json, write_json
from gradstats.system.progress import ProgressReport


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run: the run itself keeps the manifest of its first call."""
    return shutil.copytree(finished.run.path, tmp_path / "copied")


def test_the_analysis_may_change_between_calls(copied, experiment):
    other = experiment.model_copy(
        update={"variance": experiment.variance.model_copy(update={"estimators": ["rloo", "group_mean"]})}
    )
    result = run_experiment(other, copied, progress=False)
    assert pd.read_csv(result.run.path / "variance.csv")["estimator"].tolist() == ["rloo", "group_mean"]


def test_a_repeated_call_shows_its_steps_and_keeps_the_remarks_of_sampling(copied, experiment, monkeypatch):
    before = read_json(copied / "manifest.json")
    assert any("it is not followed" in remark for remark in before["remarks_of_steps"]["sampling"])

    @contextmanager
    def recorded(label, total, *, done=0, shown=True):
        bar = Progress(disable=True)
        report = ProgressReport(bar, label, total, done)
        bars.append((shown, bar.tasks[0]))
        monkeypatch.setattr(report, "doing", lambda what, doing=report.doing: (names.append(what), doing(what)))
        yield report

    bars, names = [], []
    monkeypatch.setattr("gradstats.runs.analysis.progress_bar", recorded)
    for progress in (True, False):
        run_experiment(experiment, copied, progress=progress)
        after = read_json(copied / "manifest.json")
        assert sorted(after["remarks"]) == sorted(before["remarks"])
        assert after["remarks_of_steps"] == before["remarks_of_steps"]
    assert [shown for shown, _ in bars] == [True, False]
    assert all(task.finished and task.total == task.completed for _, task in bars)
    steps = names[: len(names) // 2]
    assert steps[:5] == ["variance", "alpha", "alpha by block", "group sizes", "allocation"]
    assert steps[-3:] == ["figures", "report", ""]


@pytest.fixture
def with_curve(drawn, tmp_path, monkeypatch, capsys):
    """A copy of a finished run, to which a curve was added."""
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    words = ("ask", path, "curve", "asymmetric(loo=True)", "delta=-0.5,0", "--n-resamples", "8")
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    return path


CURVE = "curve_asymmetric_loo_true_delta"
CURVE_FILES = [f"tables/{CURVE}.csv", f"tables/{CURVE}.json", f"figures/{CURVE}.png", f"figures/{CURVE}.csv"]


def test_what_a_command_added_survives_a_repeated_run(with_curve, drawing):
    before = {name: (with_curve / name).read_bytes() for name in CURVE_FILES}
    result = run_experiment(drawing, with_curve, progress=False)
    assert {name: (with_curve / name).read_bytes() for name in CURVE_FILES} == before
    assert not set(CURVE_FILES[:2]) & set(result.run.read_manifest()["files"])  # else they would be made anew
    assert "asymmetric(loo=True) along delta" in (with_curve / "report.html").read_text()
    assert not [remark for remark in result.run.remarks if CURVE in remark]


@pytest.mark.slow
def test_what_a_command_added_goes_when_the_run_grows(with_curve, experiment):
    size = {"group_size": experiment.sampling.group_size + 2}
    larger = experiment.model_copy(update={"sampling": experiment.sampling.model_copy(update=size)})
    with pytest.warns(UserWarning, match=f"{CURVE} is left out"):
        result = run_experiment(larger, with_curve, progress=False)
    assert len(result.measured) == 36
    assert f"{CURVE} is left out, since the run had other completions" in " ".join(result.run.remarks)


@pytest.mark.parametrize("repeat", ["run", "regrade"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tables/group_sizes.csv", "an answer"),
        ("tables/group_sizes.json", "an answer"),
        ("tables/variance.tex", "a table"),
        ("figures/variance.png", "a figure"),
        ("report.html", "a report"),
    ],
)
def test_what_others_wrote_in_the_place_of_a_result_stays_and_so_does_all_else(
    drawn, drawing, tmp_path, name, what, repeat
):
    """Nothing is removed or written before all places are looked at."""
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    for file in (path / name).parent.glob(f"{Path(name).stem}.*"):
        file.unlink()
    (path / name).write_text('{"a": 1}\n')
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    again = {
        "run": lambda: run_experiment(drawing, path, progress=False),
        "regrade": lambda: regrade_run(path, "small_runs:consonants", progress=False),
    }
    with pytest.raises(FileExistsError, match=f"{name} exists and is not {what} that gradstats wrote"):
        again[repeat]()
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert before.items() <= after.items()


def test_answers_to_old_rewards_are_not_shown_where_the_analysis_could_not_be_repeated(drawn, tmp_path):
    path = shutil.copytree(drawn.run.path, tmp_path / "run")
    (path / "figures" / "variance.png").unlink()
    (path / "figures" / "variance.csv").write_text("mine\n")
    with pytest.raises(FileExistsError, match=r"variance.csv exists and is not the table of a figure that gradst"):
        regrade_run(path, "small_runs:consonants", progress=False)
    with pytest.raises(ValueError, match="other completions or"):
        read_results(path)
    (path / "figures" / "variance.csv").unlink()
    regrade_run(path, "small_runs:consonants", progress=False)
    assert "variance" in read_results(path).answers


def test_a_run_that_an_earlier_version_analysed_is_analysed_again(finished, copied, experiment):
    expected = (copied / "variance.csv").read_bytes()
    for state in (*copied.glob("*.json"), *(copied / "tables").glob("*.json")):
        kept = read_json(state) if state.name == "manifest.json" else {"reference": "rloo"}
        write_json(state, {name: entry for name, entry in kept.items() if name != "computed_with"})
    for table in (copied / "variance.csv", copied / "tables" / "group_sizes.csv"):
        table.write_text("estimator,old\nrloo,1\n")
    with pytest.raises(ValueError, match="was analysed by an earlier version: `gradstats run"):
        read_results(copied)
    run_experiment(experiment, copied, progress=False)
    assert (copied / "variance.csv").read_bytes() == expected
    assert read_results(copied).answers.keys() == read_results(finished.run.path).answers.keys()


def test_what_was_exported_of_answers_that_changed_or_are_left_out_goes(with_curve, monkeypatch, capsys):
    """A table or figure of other numbers than the run holds would be taken for its own."""
    words, out = ("export", with_curve, "--formats", "svg"), with_curve.parent / "out"
    for where in ((), ("--out", out)):
        code, _, err = run(monkeypatch, capsys, *words, *where)
        assert code == 0, err
    (out / "tables" / f"{CURVE}.md").write_text("years of work")
    assert {f"tables/{CURVE}.tex", f"figures/{CURVE}.svg"} <= files_of(out)
    mine = [with_curve / name for name in (f"tables/{CURVE}.txt", "tables/mine.tex", "figures/a.svg")]
    for path in mine:
        path.write_text("years of work")
    exported = [f"tables/{CURVE}.tex", f"figures/{CURVE}.svg", "tables/group_sizes.tex", "figures/variance.svg"]
    assert all((with_curve / name).exists() for name in exported)
    regrade_run(with_curve, "small_runs:vowels", progress=False)
    assert all((with_curve / name).exists() for name in exported), "the same numbers"
    with pytest.warns(UserWarning, match=f"{CURVE} is left out"):
        result = regrade_run(with_curve, "small_runs:consonants", progress=False)
    said = f"{CURVE} is left out, since the run had other completions or rewards then: ask it again"
    assert said in result.run.remarks
    assert said in (with_curve / "report.html").read_text()
    assert "asymmetric(loo=True) along delta" not in (with_curve / "report.html").read_text()
    assert [name for name in [*exported, *CURVE_FILES[2:]] if (with_curve / name).exists()] == []
    assert all((with_curve / name).exists() for name in [*CURVE_FILES[:2], "figures/variance.png"])
    assert all(path.exists() for path in mine)
    code, _, err = run(monkeypatch, capsys, *words, "--out", out)
    assert code == 0, err
    assert {name for name in files_of(out) if CURVE in name} == {f"tables/{CURVE}.md"}
    assert "tables/group_sizes.tex" in files_of(out)


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_damaged_addition_is_named_and_costs_nothing_else(with_curve, experiment):
    table = with_curve / "tables" / f"{CURVE}.csv"
    damaged = table.read_bytes().replace(b"1", b"2", 1)
    table.write_bytes(damaged)
    with pytest.warns(UserWarning, match=f"{CURVE}.csv has changed since it was written"):
        result = run_experiment(experiment, with_curve, progress=False)
    assert f"{CURVE}.csv has changed since it was written" in " ".join(result.run.remarks)
    assert table.read_bytes() == damaged
    assert result.comparison is not None


def test_data_that_allow_no_fit_become_a_remark_and_cost_nothing_else(experiment, tmp_path):
    short = experiment.model_copy(update={"sampling": experiment.sampling.model_copy(update={"max_new_tokens": 1})})
    result = run_experiment(short, tmp_path / "run", progress=False)
    assert result.fit is None
    assert any(remark.startswith("left out: length scaling: ") for remark in result.run.remarks)
    assert result.comparison is not None
    assert (tmp_path / "run" / "variance.csv").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_repeated_analysis_that_fails_leaves_no_results_of_the_earlier_one(finished, tmp_path, monkeypatch, capsys):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    run = RunDirectory(path, finished.run.experiment)
    (path / "variance_mine.csv").write_text("mine\n")
    assert {name for name in RESULTS if (path / name).exists()} == RESULTS

    def refused(*_: object, **__: object) -> None:
        raise ValueError("not with these data")

    monkeypatch.setattr("gradstats.analyses.variance.ANALYSIS", replace(registry.get("variance"), ask=refused))
    result = analyse(run)
    assert result.comparison is None
    assert {name for name in RESULTS if (path / name).exists()} == {"alpha.json", "report.html"}
    assert "left out: variance: not with these data" in run.read_manifest()["remarks"]
    assert not {"variance.csv", "variance.json"} & set(run.read_manifest()["files"])
    text = (path / "report.html").read_text()
    assert re.search(r"left out: </dt><dd>variance: not with these data", text)
    show_run(result)
    assert "  left out: variance: not with these data" in capsys.readouterr().out
    monkeypatch.setattr("gradstats.analyses.alpha.ANALYSIS", replace(registry.get("alpha"), ask=refused))
    analyse(run)
    assert {name for name in RESULTS if (path / name).exists()} == set()
    assert (path / "variance_mine.csv").exists()


RESULTS = {"alpha.json", "variance.csv", "variance.json", "report.html"}


def test_the_points_behind_the_fit_give_the_fit(finished):
    path = finished.run.path
    points = pd.read_csv(path / "tables" / "length_scaling.csv")
    fit = gradstats.fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"], groups=points["prompt_id"])
    assert fit.alpha == pytest.approx(finished.fit.alpha)
    assert json.loads((path / "alpha.json").read_text())["alpha"] == pytest.approx(fit.alpha)
    assert {"alpha.csv", "alpha.json", "tables/length_scaling.csv", "tables/alpha.tex", "tables/alpha.md"} <= {
        str(one.relative_to(path)) for one in finished.paths
    }
    assert all(one.stat().st_size for one in finished.paths)


def test_a_comparison_is_written_with_its_settings(finished):
    about = json.loads((finished.run.path / "variance.json").read_text())
    assert (about["reference"], about["n_prompts"]) == ("rloo", 6)
    assert list(finished.comparison.notes) == about["notes"]
    assert set(about["notes"]) <= set(finished.run.remarks)
    assert about["sentence"].startswith("No estimator")
    frame = pd.read_csv(finished.run.path / "variance.csv")
    np.testing.assert_allclose(frame["trace_cov"], finished.comparison.to_frame()["trace_cov"])


def test_a_sampler_that_differs_from_the_scorer_becomes_a_remark(finished, tmp_path):
    """The sampler truncated to 3 tokens, and the scorer scores all of them."""
    rollouts = finished.measured.rollouts
    frame = rollouts.frame.assign(sampler_logprobs=[values.tolist() for values in finished.measured.logprobs])
    metadata = rollouts.metadata | {"sampler": rollouts.metadata["sampler"] | {"top_k": 3}}
    measured = replace(finished.measured, rollouts=Rollouts(frame, metadata))
    run = RunDirectory(tmp_path, finished.run.experiment)
    run.measurement.mkdir()
    run.rollouts.mkdir()
    measured.save(run.measurement / "shard-00000")
    result = analyse(run)
    assert result.gap is not None
    assert result.gap.off_policy
    assert result.gap.sentence() in run.remarks
    assert run.read_manifest()["sampler_gap"]["sentence"] == result.gap.sentence()


def test_ratios_are_written_and_drawn_only_where_they_differ_from_one(finished, tmp_path):
    tables = finished.run.path / "tables"
    ratios = pd.read_csv(tables / "ratios.csv")
    assert ratios["ratio"].tolist()[:3] == ["token", "product", "geometric_mean"]
    assert {"grpo", "dapo"} <= set(pd.read_csv(tables / "ratio_clipping.csv")["recipe"])
    assert not (finished.run.path / "figures" / "ratios.png").exists()
    saved = read_results(finished.run.path)
    assert saved.answers["ratios"].sentence.startswith("Sampler and scorer agree")
    assert saved.answers["ratios"].about["settled"] is True
    assert "settled" not in saved.answers["batch_size"].about
    apart = replace(saved.answers["ratios"], frame=ratios.assign(chi_squared=0.2))
    drawn_off_policy = replace(saved, answers=saved.answers | {"ratios": apart})
    assert "ratios" in figures_as_svg(drawn_off_policy)


@dataclass
class Measured:
    """The fields of a measurement that a comparison reads."""

    rollouts: Rollouts
    sketches: np.ndarray
    sq_norms: np.ndarray
    old_logprobs = token_projections = None

    @property
    def metadata(self):
        return {}

    @property
    def sq_norms_by_block(self):
        return pd.DataFrame({"all": self.sq_norms})


def measured(per_prompt, n_prompts=40, seed=0):
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    rewards = (rng.random(n) < 0.5).astype(float)
    scores = rng.standard_normal((n, 64)) + 0.2 * rewards[:, None]
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[2] * length for length in rng.integers(3, 30, n)],
        rewards,
        [f"p{i // per_prompt}" for i in range(n)],
    )
    return Measured(rollouts, scores, np.einsum("nd,nd->n", scores, scores))


SECTION = VarianceSection(estimators=["rloo", "group_mean", "batch_mean", "token_mean(loo=True)"])


@pytest.mark.usefixtures("unchecked")
def test_tables_of_eight_completions():
    pool = measured(8)
    found = breakdowns(pool, SECTION)
    assert list(found) == [
        "group_sizes",
        "equivalent_group_size",
        "allocation",
        "batch_size",
        "length_bins",
        "success_bins",
    ]
    sizes = found["group_sizes"].frame
    # A batch-level estimator has no group size.
    assert set(sizes["estimator"]) == {"rloo", "group_mean", "token_mean(loo=True)"}
    assert sorted(set(sizes["group_size"])) == [2, 4, 8]
    of_largest = sizes["estimator"].isin(["rloo", "group_mean"])  # multiples of RLOO alone
    assert sizes["within_prompt"].notna().tolist() == ((sizes["group_size"] < 8) | of_largest).tolist()
    assert sizes.columns.is_unique
    assert sizes.columns[-6:].to_list() == [
        f"{name}{end}" for name in ("within_prompt", "between_prompt") for end in ("", "_low", "_high")
    ]
    assert sizes.attrs["reference"] == "rloo"
    equal = found["equivalent_group_size"].frame.set_index("estimator")
    alone = equivalent_group_size(pool, "token_mean(loo=True)", 4)
    assert equal.loc["token_mean(loo=True)", "equivalent_group_size"] == pytest.approx(alone.value)
    assert equal.loc["rloo", "equivalent_group_size"] == pytest.approx(4.0)


@pytest.mark.usefixtures("unchecked")
def test_the_bins_of_length_are_of_every_estimator_that_can_be_split():
    """The reference comes first; each bin of a baseline's own-sample mean keeps (N−1)/N of the gradient."""
    pool = measured(4, n_prompts=400)
    section = VarianceSection(estimators=["group_mean", "batch_mean", "otb", "rloo"])
    frame = breakdowns(pool, section)["length_bins"].frame
    # batch_mean is batch-level, and otb needs scores of tokens.
    assert frame["estimator"].tolist() == 4 * ["rloo"] + 4 * ["group_mean"]
    assert frame["scale"].tolist() == pytest.approx(4 * [1.0] + 4 * [0.75])


@pytest.mark.usefixtures("unchecked")
def test_gradients_are_split_by_success_once_for_each_unit():
    labels = ["reinforce", "rloo", "recipe:grpo", "recipe:gspo", "recipe:dr_grpo(max_tokens=50)", "batch_mean", "gae"]
    frame = breakdowns(measured(8), VarianceSection(estimators=labels, reference="rloo"))["success_bins"].frame
    # recipe:gspo has the unit of recipe:grpo; batch_mean is batch-level, and gae needs values.
    assert list(dict.fromkeys(frame["estimator"])) == ["rloo", "recipe:grpo", "recipe:dr_grpo(max_tokens=50)"]
    for _, rows in frame.groupby("estimator"):
        assert rows["success_low"].is_monotonic_increasing
        assert rows["share_of_variance"].sum() == pytest.approx(1.0)
    assert set(frame["group_size"]) == {4.0}


@pytest.mark.usefixtures("unchecked")
def test_what_the_data_do_not_allow_is_missing():
    found = list(breakdowns(measured(2), SECTION))
    assert found == ["group_sizes", "allocation", "batch_size", "length_bins"]
    assert list(breakdowns(measured(1), SECTION)) == ["batch_size", "length_bins"]


def test_a_run_directory_and_its_folders_give_the_same(finished):
    run = finished.run
    rollouts = read_rollouts(run.path)
    assert len(rollouts) == len(read_rollouts(run.rollouts)) == 24
    assert len(read_rollouts(run.rollouts / "shard-00000.parquet")) == 6
    measured = read_measurement(run.path)
    np.testing.assert_array_equal(measured.sq_norms, read_measurement(run.measurement).sq_norms)
    np.testing.assert_array_equal(load_points(run.path)["measured"].sq_norms, measured.sq_norms)


@pytest.mark.parametrize("load", [read_rollouts, read_measurement])
def test_a_half_regraded_run_is_refused(tmp_path, load):
    (tmp_path / "regraded").mkdir()
    (tmp_path / "regraded" / "pending.json").write_text("{}")
    with pytest.raises(ValueError, match=re.escape(f"scoring {tmp_path} again was interrupted: finish it with")):
        load(tmp_path)
