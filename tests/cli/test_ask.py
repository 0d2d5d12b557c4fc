"""Questions as commands ask them: α, comparisons, plans and all others."""

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run
from comparison_batches import quiet_compare
from saved_runs import save_run, saved_answer
from small_runs import leave_out_pictures

import gradstats as gs
from gradstats.analyses import registry
from gradstats.analyses.curve import parameter_values
from gradstats.analyses.numbers import format_estimate
from gradstats.answers import Answer
from gradstats.config.experiment import Experiment, load_experiment
from gradstats.config.sections import DEFAULT_ESTIMATORS
from gradstats.report.saved_results import read_recorded_experiment, write_recorded_experiment
from gradstats.report.verdict import sentence_of
from gradstats.runs.pipeline import run_experiment
from gradstats.system.files import write_json


@pytest.fixture
def rollouts_alone(measured):
    return measured.with_name("rollouts.parquet")


#: What the capitals in the tables below stand for: names of fixtures.
SOURCES = {"MEASURED": "measured", "ROLLOUTS": "rollouts_alone", "DRAWN": "drawn_elsewhere", "POINTS": "points"}


@pytest.fixture
def ask(request, monkeypatch, capsys):
    """A function that calls the command with the words of a line."""

    def call(line, *more):
        words = [request.getfixturevalue(SOURCES[word]) if word in SOURCES else word for word in shlex.split(line)]
        return run(monkeypatch, capsys, *words, *more)

    return call


#: Words of a command → parts of what it answers.
SAID = {
    "variance MEASURED --estimators rloo group_mean --group-size 2 4": [
        "samples for equal noise, rloo = 1, groups of 2"
    ],
    "variance MEASURED --estimators rloo group_mean --group-size 2 4 --all": ["rloo, N = 4"],
    "ask MEASURED success_bins rloo grpo --notes": ["share of variance", "forms groups of 4 completions"],
    "ask MEASURED allocation rloo --tokens 5000 --group-sizes 2 4 32": ["rloo, 32* × "],
    "ask MEASURED group_sizes rloo --group-size 4": [
        "Draw at least 7 completions of each prompt (rloo)."
    ],
    "ask MEASURED shift 'length_weighted(alpha=0.8)'": ["The baseline of length_weighted(alpha=0.8) lies −0."],
    "ask ROLLOUTS length_reward": ["Longer answers to a prompt are less often right: the correlation"],
    "ask DRAWN ratios --n-bins 2": [
        "Sampler and scorer differ (largest difference of a token's log-probability 0.", "completion, all",
    ],
    "alpha POINTS": ["α 0.79 [0.47, 1.10]: gradients may grow like √", "For length weights, use α = 0.83 [0.45, 1.21]"],
    "alpha POINTS --all --notes": [
        "Length exponent α with 95% intervals (ols, cluster interval)", "α R² n standard error slope 2α",
        " ols 0.79 [0.47, 1.10] 0.5 29 0.139 1.58",
        "For length weights use α = 0.829 [0.448, 1.211] (fit to the mean). ",
    ],
    "alpha POINTS --interval t --all": [" ols 0.79 [0.48, 1.10] 0.5 29 0.153 1.58"],
    "plan --noise 1 --length-spread 0.5 --half-width 0.1": ["418 prompts (418 completions) give α ± 0.1"],
    "plan POINTS": [" tokens) give α ± 0.05 in 80% of studies.", "1 note: --notes"],
    "plan POINTS --notes": ["note: Planned: α ± 0.05 (95% interval); from the pilot's 29 prompts,"],
    "plan MEASURED --estimator reinforce --group-size 4 --ratio 1.5": [
        " distinguish reinforce from rloo at a relative noise of 1.5 in 80% of studies."
    ],
    "plan MEASURED --estimator reinforce --group-size 4 --ratio 1.5 --quantity ratio": [
        " distinguish reinforce from rloo at a ratio of 1.5 in 80% of studies."
    ],
    "plan MEASURED --estimator 'length_weighted(alpha=0.05, loo=True)'": [
        "length_weighted(alpha=0.05, loo=True) and rloo to differ by at most 5% in 80% of studies."
    ],
    "plan MEASURED --estimator reinforce --signal": ["resolve the signal of reinforce in 80% of studies"],
    "plan MEASURED --estimator reinforce --critical-batch 2": [
        "give the critical batch of reinforce to a factor of 2 in 80% of studies"
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", SAID)
def test_what_is_asked_is_answered(words, ask):
    code, out, err = ask(words)
    assert code == 0, err
    for part in SAID[words]:
        assert part in f" {joined(out)} "


#: Words of a command → why it has no answer.
REFUSED = {
    "ask MEASURED success_bins rloo --success p": "--success p: the rollouts have no such column",
    "ask MEASURED allocation rloo --tokens 0": "tokens=0.0 must be a positive number of completion tokens",
    "ask MEASURED critic": "critic_quality needs values: make them with --set values.monte_carlo=4 (in Python ",
    "ask MEASURED curve length_weighted alfa=0:1:3": "has no parameter 'alfa': known are alpha",
    "ask MEASURED ratios": "ratios need the log-probabilities of sampler and scorer",
    "ask MEASURED tokens": "measure with --set measurement.token_probes=32 --out … (in Python token_probes=32)",
    "ask MEASURED variance_by_block": "--set measurement.block_sketches=true --out … (in Python block_sketches=True)",
    "ask MEASURED group_sizes rloo --group-size 5": "no prompt has the 10 completions that two groups of 5 need",
    "ask MEASURED group_sizes rloo --group-size 2": "noise is computed from groups of 2 and of this size",
    "ask MEASURED group_sizes batch_mean": "is a batch-level estimator",
    "ask MEASURED shift pass_at_k": "baseline: best of the others",
    "alpha POINTS --interval rank": (
        "method='rank' is not available here for a fit by 'ols': choose from t, hc3, cluster, bootstrap"
    ),
    "plan": "give either a pilot (a fit; of the command a run",
    "plan MEASURED --critical-batch 2": "--critical-batch needs --estimator: name the estimator to plan for",
    "plan MEASURED --estimator rloo": "it is a multiple of the reference: choose another estimator",
    "plan MEASURED --ratio 0.9 --signal": "--ratio and --signal need --estimator: name the estimator",
    "plan --estimator grpo": "give a measurement folder or a run directory as the pilot of --estimator",
    "plan MEASURED --dry-run": "--dry-run needs a run directory with an experiment.yaml",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_answer_ends_in_one_sentence(words, ask):
    code, out, err = ask(words)
    assert code == 1
    assert REFUSED[words] in joined(err)
    assert "Traceback" not in out + err


def test_by_success_with_the_exact_rates_of_a_column(answered, measured, tmp_path):
    known = gs.read_measurement(measured)
    frame = known.rollouts.frame.assign(rate=np.repeat(np.linspace(0, 1, 30), 8))
    replace(known, rollouts=gs.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    words = ("ask", tmp_path / "measurement", "success_bins", "rloo", "--bins", 3, "--json")
    out = answered(*words, "--success", "rate")
    assert [row["n_prompts"] for row in json.loads(out)["rows"]] == [10, 10, 10]


@pytest.mark.usefixtures("elsewhere")
def test_without_estimators_those_of_the_run_answer(answered, own_run, measured):
    """A bare measurement is asked about the usual ones that stay within their group."""
    within = {label for label in DEFAULT_ESTIMATORS if not gs.estimators.get(label).across_groups}
    for name in ("batch_size", "group_sizes", "length_bins", "allocation"):
        out = answered("ask", measured, name, "--json")
        assert {row["estimator"] for row in json.loads(out)["rows"]} == within, name
    out = answered("ask", own_run, "batch_size", "--trust", "--json")
    assert [row["estimator"] for row in json.loads(out)["rows"]] == ["rloo", *LABELS]


LABELS = {
    "length_weighted(alpha=0.8, loo=True)": "length_weighted(alpha=0.8, loo=True)",
    "recipe:dr_grpo(loo=True)": "Dr. GRPO, leave-one-out",
    "labels_of_mine:lowered(by=0.25)": "labels_of_mine:lowered(by=0.25)",
}
#: Of each, the label of a curve and the parameter that it varies.
VARIED = {
    "length_weighted(alpha=0.8, loo=True)": ("length_weighted(loo=True)", "alpha=0:1:2"),
    "recipe:dr_grpo(loo=True)": ("recipe:dr_grpo(loo=True)", "max_tokens=8:16:2"),
    "labels_of_mine:lowered(by=0.25)": ("labels_of_mine:lowered", "by=0:0.5:2"),
}
MODULE = "def lowered(batch, by=0.0):\n    return batch.rewards - by\n"


@pytest.fixture(scope="module")
def own_run(policy_folder, tmp_path_factory):
    """A run whose experiment file names every label, with the user's module beside it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "labels_of_mine.py").write_text(MODULE)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 9)))
    (folder / "labels.yaml").write_text(
        f"""
        policy: {{name: {policy_folder}}}
        prompts: {{source: {folder / "p.jsonl"}}}
        sampling: {{group_size: 6, max_new_tokens: 12, reward: "small_runs:consonants"}}
        measurement: {{sketch_dim: 64}}
        variance: {{estimators: [rloo, "{'", "'.join(LABELS)}"]}}
        figures: {{formats: []}}
        """
    )
    path = tmp_path_factory.mktemp("runs") / "labels"
    with pytest.MonkeyPatch.context() as patched:
        leave_out_pictures(patched)
        run_experiment(load_experiment(folder / "labels.yaml"), path, progress=False)
    yield path
    sys.modules.pop("labels_of_mine", None)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


#: Words of a command, with the label or what is varied of it.
PLACES = {
    "--estimators": "variance RUN --estimators rloo LABEL --all",
    "group_sizes": "ask RUN group_sizes LABEL --group-size 3 --all",
    "shift": "ask RUN shift LABEL",
    "curve": "ask RUN curve VARIED",
    "allocate": "ask RUN allocation rloo LABEL --tokens 100 --all --notes",
    "by-success": "ask RUN success_bins LABEL --bins 2 --all",
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("place", PLACES)
def test_every_label_works_in_every_place(own_run, place, label, monkeypatch, capsys):
    words = {"RUN": [own_run], "LABEL": [label], "VARIED": VARIED[label]}
    filled = [part for word in PLACES[place].split() for part in words.get(word, [word])]
    code, out, err = run(monkeypatch, capsys, *filled, "--trust")
    assert (code, "NaN:" in err) == (0, False), err
    named = VARIED[label][0] if place == "curve" else label
    assert named in out + err  # a scale that 8 prompts do not resolve is named in a note


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_label_works_in_an_experiment_file_and_beside_it_in_python(own_run, monkeypatch):
    assert set(LABELS) <= set(pd.read_csv(own_run / "variance.csv").set_index("estimator")["trace_cov"].dropna().index)
    monkeypatch.chdir(own_run / json.loads((own_run / "manifest.json").read_text())["experiment_folder"])
    frame = gs.compare(gs.read_measurement(own_run / "measurement"), [*LABELS]).to_frame()
    assert frame["estimator"].tolist() == [*LABELS]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("words", [("ask", "group_sizes"), ("ask", "shift"), ("variance", "--estimators")])
def test_the_recorded_folder_is_searched_with_permission_only(own_run, words, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, words[0], own_run, *words[1:], "labels_of_mine:lowered")
    folder = (own_run / json.loads((own_run / "manifest.json").read_text())["experiment_folder"]).resolve()
    assert code == 1
    assert "there is no module 'labels_of_mine' in " in err
    assert f"the experiment file of {own_run} was in {folder}: add --trust to search there as well" in err


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_that_is_gone_or_was_never_recorded_is_not_searched(refused, own_run, tmp_path):
    for recorded in ("../nowhere", None, 3):
        (tmp_path / "manifest.json").write_text(json.dumps({"experiment_folder": recorded}))
        err = refused("ask", tmp_path, "shift", "labels_of_mine:lowered", "--trust")
        assert "there is no module 'labels_of_mine'" in err
        assert "add --trust" not in err


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_is_scored_again_by_the_module_beside_its_experiment_file(answered, own_run):
    """The run names its estimators' module itself, and the reward's is named with the command."""
    copy = Path(shutil.copytree(own_run, own_run.parent / "scored_again"))  # records the same folder
    folder = copy / json.loads((copy / "manifest.json").read_text())["experiment_folder"]
    (folder / "rewards_of_mine.py").write_text("def twice(text, problem):\n    return 2.0 * text.count('a')\n")
    sys.modules.pop("labels_of_mine", None)
    answered("regrade", copy, "--reward", "rewards_of_mine:twice", "--trust", "--no-progress")
    assert "labels_of_mine:lowered(by=0.25)" in pd.read_csv(copy / "variance.csv")["estimator"].tolist()
    assert gs.read_rollouts(copy / "rollouts").metadata["reward"] == "rewards_of_mine:twice"
    sys.modules.pop("labels_of_mine", None)
    answered("run", own_run / "experiment.yaml", "--out", own_run, "--dry-run", "--trust")


def test_missing_words_are_named_with_their_form(monkeypatch, capsys, measured):
    code, out, err = run(monkeypatch, capsys, "ask", measured, "curve")
    said = " ".join((out + err).replace("│", "").split())
    assert code == 2
    assert " ESTIMATOR a label" in said
    assert " VALUES the parameter and its values: alpha=0:2:41" in said
    assert "alpha=0:2:41 (first, last, how many)" in said


def test_estimators_that_lack_their_option_are_proposed_with_it(monkeypatch, capsys, measured):
    _, _, err = run(monkeypatch, capsys, "variance", measured, "rloo", "grppo", "--all")
    assert "--estimators rloo grppo: no estimator is called 'grppo': did you mean 'grpo'?" in err
    _, _, err = run(monkeypatch, capsys, "variance", measured, "--reference", "grppo")
    assert "gradstats: --reference: no estimator is called 'grppo'" in err
    assert "go after --estimators: --estimators rloo" in run(monkeypatch, capsys, "variance", measured, "rloo")[2]


def test_values_are_a_range_or_a_list():
    np.testing.assert_array_equal(parameter_values("tau=0.5,2")[1], [0.5, 2.0])
    np.testing.assert_allclose(parameter_values("alpha=0:2:41")[1], np.linspace(0, 2, 41))


@pytest.mark.parametrize("words", ["alpha", "alpha=", "alpha=1", "alpha=0:1", "alpha=0:1:x", "=0:1:3", "alpha=0:1:1"])
def test_other_words_are_refused(words):
    with pytest.raises(ValueError, match="cannot be read as a parameter with values: write alpha=0:2:41"):
        parameter_values(words)


@pytest.fixture
def incomplete(measured, tmp_path):
    """A run directory of which one of two shards was measured."""
    folder = tmp_path / "run" / "measurement"
    folder.mkdir(parents=True)
    shutil.copytree(measured, folder / "shard-00000")
    write_json(folder / "plan.json", {"n_shards": 2})
    return folder.parent


def test_an_incomplete_run_is_told_of_and_keeps_no_results(refused, monkeypatch, capsys, incomplete, tmp_path):
    words = ["ask", incomplete, "curve", "asymmetric(loo=True)", "delta=-0.5,0", "--partial"]
    before = sorted(incomplete.rglob("*"))
    for more in ([], ["--out", incomplete]):
        assert "with --partial nothing is written into the run" in refused(*words, *more)
    code, _, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "found")
    assert code == 0, err
    assert "1 of 2 shards are missing" in err.replace("\n", " ")
    assert list((tmp_path / "found" / "tables").glob("*.csv"))
    assert sorted(incomplete.rglob("*")) == before


@pytest.fixture
def drawn_elsewhere(measured, tmp_path):
    """The measurement of the other tests, its sampler's log-probabilities a tenth of a nat away from the scorer's."""
    known = gs.read_measurement(measured)
    rng = np.random.default_rng(1)
    drawn = [scored + 0.1 * rng.normal(size=scored.size) for scored in known.logprobs]
    frame = known.rollouts.frame.assign(sampler_logprobs=drawn)
    replace(known, rollouts=gs.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    return tmp_path / "measurement"


def test_alpha_as_json_and_by_prompt(answered, points):
    summary = json.loads(answered("alpha", points, "--json", "--confidence-level", 0.9))
    assert summary["alpha"] == pytest.approx(0.7887, abs=5e-5)
    assert summary["confidence_level"] == 0.9
    assert 0.474 < summary["alpha_low"] < summary["alpha_high"] < 1.103
    assert summary["mean_scaling"]["alpha"] == pytest.approx(0.829, abs=1e-3)
    pd.read_csv(points).assign(prompt_id=np.arange(29) // 3).to_csv(points, index=False)
    clustered = json.loads(answered("alpha", points, "--json"))
    assert (clustered["interval"], clustered["alpha"]) == ("cluster", summary["alpha"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,norm\n1,2\n", "has no column 'sq_norm' (it has length, norm)"),
        ("length,sq_norm\n1,2\n2,x\n3,4\n", "the column 'sq_norm' of"),
        ("length,sq_norm\n1,2\n2,inf\n3,4\n", "has the sq_norm inf: give a finite number, or drop it"),
        ("length,sq_norm\n1,2\n-inf,3\n3,4\n", "has the length -inf: give a finite number, or drop it"),
        ("length,sq_norm,truncated\n1,2,no\n2,3,perhaps\n", "has truncated='perhaps': write true or false"),
        ("length,sq_norm\n5,2\n5,3\n6,4\n", "lengths hold 2 distinct value(s)"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_points_end_in_one_sentence(refused, tmp_path, content, message):
    path = tmp_path / "points.csv"
    path.write_text(content)
    assert message in refused("alpha", path)


@pytest.mark.parametrize("method", ["ols", "theil_sen", "gamma", "ppml", "gls", "within_prompt", "between_prompt"])
def test_alpha_by_every_method(answered, measured, method):
    fit = gs.fit_length_scaling(gs.read_measurement(measured), method=method)
    out = answered("alpha", measured, "--method", method, "--all", "--notes")
    assert f" {method} {format_estimate(fit.alpha, *fit.confidence_interval())} " in joined(out)
    assert "Consistent with on-policy sampling" in joined(out)
    assert "12 of 240 completions were cut off at the cap; without them: α =" in joined(out)
    assert re.search(r"Length exponent α of each block of parameters \(\w+\), 95% intervals", joined(out))
    assert " attention " in joined(out)


@pytest.mark.parametrize("words", [("False", "True"), ("no", "yes"), ("No ", "YES"), ("0", "1"), ("0.0", "1.0")])
def test_points_may_say_which_were_cut_off(monkeypatch, capsys, points, words):
    frame = pd.read_csv(points)
    cut_off = np.arange(len(frame)) < 4
    frame.assign(truncated=np.array(words)[cut_off.astype(int)]).to_csv(points, index=False)
    _, out, _ = run(monkeypatch, capsys, "alpha", points, "--notes")
    assert "4 of 29 completions were cut off at the cap" in out


def joined(out):
    """Return a sentence that was folded to the width of the terminal."""
    return " ".join(out.split())


def test_a_run_without_finished_answers_is_refused_before_a_question_is_answered(
    monkeypatch, capsys, measured, tmp_path
):
    words = ("ask", tmp_path, "curve", "rloo", "group_size=2,4")
    (tmp_path / "measurement").symlink_to(measured)
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (1, "")
    assert f"the analysis of {tmp_path} is not finished" in joined(err)
    write_json(tmp_path / "manifest.json", {"experiment": "of an earlier version"})
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (1, "")
    assert "analysed by an earlier version: `gradstats run EXPERIMENT --out" in joined(err)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == ["manifest.json", "measurement"]


def test_an_answer_that_a_run_leaves_out_is_replaced_by_asking_again(monkeypatch, capsys, measured, tmp_path):
    words = ("ask", save_run(tmp_path / "run"), "curve", "rloo", "group_size=2,4")
    (tmp_path / "run" / "measurement").symlink_to(measured)
    for rewards in ("before", "now"):
        write_json(tmp_path / "run" / "manifest.json", {"computed_with": {"rewards": rewards, "values": None}})
        code, _, err = run(monkeypatch, capsys, *words)
        assert (code, err) == (0, "")
        assert saved_answer(tmp_path / "run", "curve_rloo_group_size").about["computed_with"]["rewards"] == rewards
    code, out, err = run(monkeypatch, capsys, *words, "--confidence-level", 0.8)
    assert (code, "80% intervals" in out) == (1, True)
    assert "replace it with --overwrite" in joined(err)
    assert saved_answer(tmp_path / "run", "curve_rloo_group_size").about["confidence_level"] == 0.95


def test_an_answer_is_saved_before_its_reader_may_leave(monkeypatch, capsys, measured, tmp_path):
    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr("gradstats.cli.ask._show", leave)
    run(monkeypatch, capsys, "ask", measured, "group_sizes", "rloo", "--out", tmp_path / "sizes.csv")
    assert (tmp_path / "sizes.csv").exists()


def test_variance_by_block(answered, measured, tmp_path):
    known = gs.read_measurement(measured)
    parts = np.stack([np.sqrt(share) * known.sketches for share in (0.25, 0.75)], axis=1)
    replace(known, sketches_by_block=parts).save(tmp_path / "m")
    words = ("ask", tmp_path / "m", "variance_by_block", "rloo", "group_mean", "otb", "--notes")
    assert "otb weights each token" in answered(*words, "--out", tmp_path / "blocks.csv")
    frame = pd.read_csv(tmp_path / "blocks.csv")
    assert frame["block"].tolist() == ["attention", "attention", "mlp", "mlp"]
    whole = quiet_compare(known, ["rloo", "group_mean"]).to_frame()["trace_cov"].to_numpy()
    np.testing.assert_allclose(frame["trace_cov"], np.concatenate([0.25 * whole, 0.75 * whole]), rtol=1e-9)


def test_of_a_run_the_questions_that_it_cannot_answer_are_named(answered, monkeypatch, capsys, measured):
    out = answered("ask", measured)
    assert len(out.splitlines()) <= 24
    answered, refused = out.split("not of this run (asked one by one they say why):")
    assert all(f"\n  {name} " in answered for name in ("variance", "allocation", "curve", "length_reward"))
    lacking = {"variance_by_block", "critic", "tokens"}
    assert lacking <= set(refused.partition("\n\n")[0].replace(",", "").split())
    assert not any(f"\n  {name} " in answered for name in lacking)
    assert "not of this run" not in run(monkeypatch, capsys, "ask")[1]


def test_an_estimator_of_ones_own_uses_a_saved_column(answered, monkeypatch, measured, tmp_path):
    known = gs.read_measurement(measured)
    frame = known.rollouts.frame.assign(salience=4.0)
    replace(known, rollouts=gs.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    (tmp_path / "salience.py").write_text(
        "def salient(batch, power=1.0):\n    return batch.columns['salience'] ** power * batch.rewards\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--estimators", "reinforce", "salience:salient(power=0.5)", "--out", tmp_path / "v.csv")
    answered("variance", tmp_path / "measurement", *words)
    plain, salient = pd.read_csv(tmp_path / "v.csv")["signal_sq"]
    assert salient == pytest.approx(4.0 * plain)


OF_RUN = """
policy: {name: a}
prompts: {source: b}
length_scaling: {confidence_level: 0.5}
variance: {estimators: [rloo, grpo, reinforce], reference: reinforce, group_size: 4, confidence_level: 0.8}
analyses: {group_sizes: {group_sizes: [2, 4]}, curve: {estimator: asymmetric(loo=True), values: "delta=-0.5,0,0.5"}}
"""
#: Questions of a run as they are asked: words → their name in the run.
ASKED_OF_RUN = {
    ("variance", "RUN"): "variance",
    ("ask", "RUN", "variance"): "variance",
    ("alpha", "RUN"): "alpha",
    ("ask", "RUN", "alpha"): "alpha",
    **{("ask", "RUN", name): name for name in ("alpha_by_block", "group_sizes", "batch_size", "success_bins")},
    ("ask", "RUN", "curve", "asymmetric(loo=True)", "delta=-0.5,0,0.5"): "curve",
    ("ask", "RUN", "curve"): "curve",
}


@pytest.fixture
def run_of_others(measured, tmp_path):
    """A run whose experiment says other than the defaults of reference, estimators, group size and levels."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "measurement").symlink_to(measured)
    write_recorded_experiment(tmp_path / "run" / "experiment.yaml", OF_RUN)
    return tmp_path / "run"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("words", ASKED_OF_RUN)
def test_a_question_has_the_answer_that_the_run_gives(answered, words, run_of_others, tmp_path):
    name, experiment = ASKED_OF_RUN[words], read_recorded_experiment(run_of_others / "experiment.yaml")
    _, expected = registry.get(name).answer_in_run(
        gs.read_measurement(run_of_others), experiment, experiment.analyses.get(name, {})
    )
    words = [run_of_others if word == "RUN" else word for word in words]
    out = answered(*words, "--json", "--out", tmp_path / "found.csv")
    saved = Answer.read(tmp_path / "found")
    assert replace(saved, notes=()) == replace(expected, notes=(), further={})
    told = json.loads(out)
    sentence = saved.sentence or sentence_of(saved)
    assert (told["question"], told["sentence"], told["notes"]) == (name, sentence, list(saved.notes))
    assert told["confidence_level"] == (0.5 if name.startswith("alpha") else 0.8)
    assert told.get("reference", "reinforce") == "reinforce"
    assert len(told["rows"]) == len(expected.frame)


@pytest.mark.parametrize(
    ("words", "level"),
    [((), 0.5), (("--estimator", "grpo", "--quantity", "ratio"), 0.8), (("--confidence-level", 0.9), 0.9)],
)
def test_a_plan_has_the_level_of_what_it_plans(answered, words, level, run_of_others):
    told = json.loads(answered("plan", run_of_others, *words, "--json"))
    assert told["confidence_level"] == level


@pytest.mark.parametrize(
    ("name", "more", "labels", "size"),
    [("variance", ("--estimators", "grpo"), ["grpo"], 4), ("batch_size", (), ["rloo", "grpo", "reinforce"], 8)],
)
def test_what_is_given_wins_over_what_the_run_says(answered, name, more, labels, size, run_of_others):
    words = ("ask", run_of_others, name, "--reference", "rloo", "--confidence-level", 0.95, *more)
    told = json.loads(answered(*words, "--json"))
    assert (told["reference"], told["confidence_level"]) == ("rloo", 0.95)
    assert [(row["estimator"], row["group_size"]) for row in told["rows"]] == [(label, size) for label in labels]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_infinities_are_texts_in_json_and_what_is_not_known_is_null(answered, run_of_others):
    out = answered("ask", run_of_others, "batch_size", "--json")
    answer = registry.get("batch_size").answer_in_run(
        gs.read_measurement(run_of_others), read_recorded_experiment(run_of_others / "experiment.yaml"), {}
    )[1]
    ends = answer.frame[["critical_batch_low", "critical_batch_high"]].to_numpy()
    assert np.isinf(ends).any()
    for row, wanted in zip(json.loads(out)["rows"], ends, strict=True):
        for text, number in zip((row["critical_batch_low"], row["critical_batch_high"]), wanted, strict=True):
            assert text == (None if np.isnan(number) else repr(float(number)) if np.isinf(number) else number)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "words",
    [("variance",), ("alpha",), ("ask", "success_bins", "rloo"), ("ask", "curve", "rloo", "group_size=2,4"), ("plan",)],
)
def test_a_path_that_ends_in_csv_is_a_file_and_any_other_a_folder(answered, words, measured, tmp_path):
    command, *rest = words
    for out in (tmp_path / "x.csv", tmp_path / "found"):
        answered(command, measured, *rest, "--out", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "x.csv", "x.json"]
    tables = [path for path in (tmp_path / "found" / "tables").glob("*.csv") if path.stem != "length_scaling"]
    (stem,) = [path.with_suffix("") for path in tables]
    pd.testing.assert_frame_equal(Answer.read(stem).frame, Answer.read(tmp_path / "x").frame)
    assert (tmp_path / "found" / "figures").is_dir() == (words not in (("plan",), ("ask", "success_bins", "rloo")))


OWN_QUESTION = """
from dataclasses import dataclass

from gradstats.analyses import Analysis, Result, Row, column


@dataclass(frozen=True)
class Length(Row):
    length: float = column("mean tokens", "mean length")


@dataclass(frozen=True, repr=False)
class Lengths(Result):
    row = Length
    rows: tuple[Length, ...]


def lengths(measured, *, of: str = "all"):
    return Lengths((Length(float(measured.lengths.mean() / {"all": 1}[of])),))


question = Analysis(name="lengths", ask=lengths, options=["of"], columns=Length.columns())
"""


def test_an_error_in_a_question_of_ones_own_is_shown_as_that(refused, measured, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_question.py").write_text(OWN_QUESTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_question", raising=False)
    monkeypatch.setattr(registry, "_own", {})  # without what is asked here for later tests
    words = ("ask", measured, "own_question:question")
    code, out, err = run(monkeypatch, capsys, *words, "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 1), err
    err = refused(*words, "--of", "some")
    line = next(at for at, text in enumerate(OWN_QUESTION.splitlines(), 1) if "mean() /" in text)
    assert f"fails in its own code, {tmp_path / 'own_question.py'}, line {line}: KeyError: 'some'; " in err
    assert "damaged" not in err
    experiment = Experiment(name="e", policy={"name": "a"}, prompts={"source": "b"})
    with pytest.raises(ValueError, match="'lengths' fails in its own code, .*: KeyError: 'some'"):  # a remark of a run
        registry.get("own_question:question").answer_in_run(gs.read_measurement(measured), experiment, {"of": "some"})
