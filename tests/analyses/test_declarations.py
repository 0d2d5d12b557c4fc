"""Every declared analysis, asked as a user asks: columns, table, figure, command, ``--json``, ``--out``, read back."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from command_line import run
from probed_policies import MANY_DIRECTIONS, probed

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.config.sections import VarianceSection
from gradstats.measurement.measurement import read_measurement
from gradstats.report.analysis_tables import table_of
from gradstats.report.columns import INDEX
from gradstats.report.saved_results import read_results
from gradstats.rollouts import Rollouts

#: Of each question the words that ask it on the command line, and the arguments of Python.
ASKED = {
    "variance": (["--estimators", "rloo", "grpo"], {"estimators": ["rloo", "grpo"]}),
    "alpha": (["--method", "gamma"], {"method": "gamma"}),
    "alpha_by_block": ([], {}),
    "variance_by_block": (["rloo", "grpo"], {"estimators": ["rloo", "grpo"]}),
    "allocation": (["rloo", "grpo", "--tokens", "5000"], {"estimators": ["rloo", "grpo"], "tokens": 5000}),
    "batch_size": (["rloo", "grpo", "--prompts", "16"], {"estimators": ["rloo", "grpo"], "prompts": 16}),
    "group_sizes": (["rloo", "grpo", "--group-size", "3"], {"estimators": ["rloo", "grpo"], "group_size": 3}),
    "spike": (["--prompts-per-batch", "5"], {"prompts_per_batch": 5}),
    "ratios": (["--n-bins", "2"], {"n_bins": 2}),
    "length_bins": (["rloo", "grpo", "--n-bins", "2"], {"estimators": ["rloo", "grpo"], "n_bins": 2}),
    "success_bins": (["rloo", "--bins", "2"], {"estimators": ["rloo"], "bins": 2}),
    "curve": (
        ["asymmetric(loo=True)", "delta=-0.5,0"],
        {"estimator": "asymmetric(loo=True)", "values": "delta=-0.5,0"},
    ),
    "optimal_baselines": (["--n-resamples", "8"], {"n_resamples": 8}),
    "critic": (["--last-step", "1"], {"last_step": 1}),
    "shift": (["token_mean"], {"estimator": "token_mean"}),
    "length_reward": ([], {}),
    "tokens": (["--group-size", "2"], {"group_size": 2}),
    "proxies": ([], {}),
    "profile": ([], {}),
    "plan": (["--half-width", "0.1"], {"half_width": 0.1}),
}


#: Whose numbers are known exactly here.
WITHOUT_INTERVAL = ("shift", "plan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A measurement with two blocks of parameters, and values of both kinds."""
    path = tmp_path_factory.mktemp("declared") / "measurement"
    batch, _, scores = MANY_DIRECTIONS.sample(20, 8, 0)
    measured = probed(batch, scores, 8, 2, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    n_tokens = [len(mask) for mask in measured.rollouts.masks]
    values, fitted = ([rng.integers(0, 5, n) / 4 for n in n_tokens] for _ in range(2))
    by_block = pd.DataFrame({"one": 0.25 * measured.sq_norms, "other": 0.75 * measured.sq_norms})
    sampler = [scored + 1e-4 * rng.normal(size=scored.size) for scored in measured.logprobs]
    columns = measured.rollouts.frame.assign(sampler_logprobs=sampler)
    rollouts = Rollouts(columns, measured.rollouts.metadata)
    parts = np.stack([np.sqrt(share) * measured.sketches for share in (0.25, 0.75)], axis=1)
    given = {"rollouts": rollouts, "sq_norms_by_block": by_block, "values": values, "fitted_values": fitted}
    given["sketches_by_block"] = parts
    replace(measured, **given).save(path)
    return path


def answer(name, folder):
    with warnings.catch_warnings():  # the data are few
        warnings.simplefilter("ignore")
        return registry.get(name).call_with_source(registry.get(name).source(folder), **ASKED[name][1])


def named(frame):
    """The columns of a frame, without the ends of intervals."""
    return {column.removesuffix("_low").removesuffix("_high") for column in frame}


@pytest.mark.parametrize("name", ASKED)
def test_columns_table_figure_and_repr_are_as_declared(name, folder):
    analysis, found = registry.get(name), answer(name, folder)
    whole = analysis.answer_of(found, 0.9)
    frame = whole.frame
    level = 0.95 if name == "alpha" else 0.9  # of which this was asked
    assert level == 0.95 or "90%" in whole.sentence or not re.search(r"\[|≥|≤|at most|shown", whole.sentence)
    declared = {one.name for one in INDEX[name]}
    shown = named(frame)
    assert shown <= declared
    for one in analysis.columns:
        assert one.meaning
        assert {f"{one.name}_low", f"{one.name}_high"} <= set(frame) or not one.estimated or one.name not in shown
    if analysis.shown_in("paper"):
        table = table_of(analysis, frame, in_words=False)
        assert len(table.rows) == len(frame)
        assert list(table.columns) == list(analysis.headings_of(analysis.display_frame(frame)).values())
        assert table.caption
        assert all(len(column) == len(frame) for column in table.columns.values())
    else:
        assert found.sentence()
    for one in analysis.further:
        further = whole.further[one.name].frame if one.name in whole.further else one.frame(found, 0.9)
        assert named(further) <= {column.name for column in one.columns}
        if one.shown_in("paper") and len(further):
            assert list(table_of(one, further, in_words=False).columns) == list(one.headings_of(further).values())
    for figure in analysis.figures:
        assert figure.caption_of(frame)
        if not figure.table and (drawn := figure.rows(frame)) is not None:
            figure.draw(drawn)
            plt.close("all")
    assert len(repr(found)) < 4200
    assert "Estimate(" not in repr(found)
    assert re.search(r"\d \[−?[\d.,]+, −?[\d.,]+\]|[≥≤] \d", repr(found)) or name in WITHOUT_INTERVAL
    assert "<table" in found._repr_html_()
    for text in (repr(found), found._repr_html_()):
        assert all(column in text for column in found.printed_columns or list(frame)[:1])


@pytest.mark.parametrize("name", [name for name in ASKED if name != "plan" and not registry.get(name).figures])
def test_a_question_without_a_figure_says_so(name, folder):
    with pytest.raises(ValueError, match=f"the question {name!r} has no figure"):
        answer(name, folder).plot()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ASKED)
def test_the_command_prints_and_writes_what_python_returns(name, folder, tmp_path, monkeypatch, capsys):
    analysis, expected = registry.get(name), answer(name, folder).to_frame()
    words = ["ask", folder, name, *ASKED[name][0]]
    out = tmp_path / "found"
    code, printed, err = run(monkeypatch, capsys, *words, "--all", "--out", out)
    assert code == 0, err
    if analysis.shown_in("terminal"):
        assert table_of(analysis, expected, "terminal", in_words=False).rows[0].split()[0] in printed
    else:
        assert answer(name, folder).sentence() in " ".join(printed.split())
    kept, saved = next(iter(read_results(out).answers.items()))
    assert registry.of_answer(saved.question) is analysis
    assert (out / "figures" / f"{kept}.pdf").is_file() or not analysis.saved_by_command
    written = saved.frame
    assert list(written) == list(expected)
    numbers = list(expected.select_dtypes("number"))
    np.testing.assert_allclose(written[numbers], expected[numbers], rtol=1e-6 if name == "tokens" else 1e-12)
    texts = [column for column in expected if column not in numbers]
    assert (
        written[texts].astype(object).fillna("").astype(str) == expected[texts].astype(object).fillna("").astype(str)
    ).all(axis=None)
    code, printed, err = run(monkeypatch, capsys, *words, "--json")
    assert code == 0, err
    told = json.loads(printed)
    assert len(told["rows"]) == len(expected)
    for one in analysis.further:
        rows = told.get("further", {}).get(one.name, {}).get("rows", [])
        assert len(rows) == (len(one.frame(answer(name, folder))) if one.shown_in("terminal") else 0)


@pytest.mark.parametrize("name", ASKED)
def test_its_help_states_the_question_and_every_option(name, monkeypatch, capsys):
    analysis = registry.get(name)
    for words in (["ask", name, "--help"], ["ask", "RUN", name, "--help"]):
        code, out, _ = run(monkeypatch, capsys, *words)
        assert code == 0
        assert analysis.question in " ".join(out.split())
        for option in ("json", "out", *analysis.options[2:]):
            assert f"--{'seed' if option == 'rng' else option.replace('_', '-')}" in out


def test_the_questions_are_listed_and_the_nearest_is_proposed(folder, monkeypatch, capsys):
    assert set(ASKED) == set(registry.names()) == set(registry.questions())
    code, out, _ = run(monkeypatch, capsys, "ask")
    assert code == 0
    for name, question in registry.questions().items():
        assert f"{name} {question}" in " ".join(out.split())
    code, _, err = run(monkeypatch, capsys, "ask", folder, "sucess-bins")
    assert code == 1
    assert "there is no question 'sucess-bins': did you mean success_bins?" in " ".join(err.split())


def test_a_run_asks_of_blocks_about_its_own_estimators_unless_others_are_named(folder):
    question, measured = registry.get("variance_by_block"), read_measurement(folder)
    section = VarianceSection(estimators=["grpo", "rloo", "batch_mean(loo=True)"], reference="grpo")
    prompts = {"source": "embedded", "n": 8}
    experiment = Experiment(name="blocks", policy={"name": "embedded"}, prompts=prompts, variance=section)
    for settings, expected in (({}, ["grpo", "rloo"]), ({"estimators": ["reinforce"]}, ["reinforce"])):
        question.refuse_settings(settings, experiment)
        with warnings.catch_warnings():  # the data are few
            warnings.simplefilter("ignore")
            _, found = question.answer_in_run(measured, experiment, settings)
        assert sorted(set(found.frame["estimator"])) == expected
        assert found.about["reference"] == "grpo"
        assert any("left out" in note and "batch_mean" in note for note in found.notes) == (not settings)
