"""Every declared analysis, asked as a user asks: columns, table, figure, command, ``--json``, ``--out``, read back."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from command_line import run
from probed_policies import MANY_DIRECTIONS, probed

from gradstats.analyses import registry
from gradstats.measurement.measurement import read_measurement
from gradstats.report.analysis_tables import analysis_table
from gradstats.report.columns import INDEX, without_interval_end
from gradstats.report.figures import FIGURES
from gradstats.report.saved_results import read_added

#: Of each question the words that ask it on the command line, and the arguments of Python.
ASKED = {
    "allocation": (["rloo", "grpo", "--tokens", "5000"], {"estimators": ["rloo", "grpo"], "tokens": 5000}),
    "success_bins": (["rloo", "--bins", "2"], {"estimators": ["rloo"], "bins": 2}),
    "curve": (
        ["asymmetric(loo=True)", "delta=-0.5,0"],
        {"estimator": "asymmetric(loo=True)", "parameter": "delta", "values": [-0.5, 0.0]},
    ),
    "optimal_baselines": (["--n-resamples", "8"], {"n_resamples": 8}),
    "critic": (["--last-step", "1"], {"last_step": 1}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A measurement with values of both kinds."""
    path = tmp_path_factory.mktemp("declared") / "measurement"
    batch, _, scores = MANY_DIRECTIONS.sample(20, 8, 0)
    measured = probed(batch, scores, 8, 2, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    n_tokens = [len(mask) for mask in measured.rollouts.masks]
    values, fitted = ([rng.integers(0, 5, n) / 4 for n in n_tokens] for _ in range(2))
    replace(measured, values=values, fitted_values=fitted).save(path)
    return path


def answer(name, folder):
    with warnings.catch_warnings():  # the data are few
        warnings.simplefilter("ignore")
        return registry.get(name)(read_measurement(folder), **ASKED[name][1])


def test_every_question_is_asked_here():
    assert set(ASKED) == set(registry.names()) == set(registry.questions())


@pytest.mark.parametrize("name", ASKED)
def test_columns_table_figure_and_repr_are_as_declared(name, folder):
    analysis, found = registry.get(name), answer(name, folder)
    frame = found.to_frame(0.9)
    declared = {one.name for one in INDEX[name]}
    assert {without_interval_end(column) for column in frame} == declared
    for one in analysis.columns:
        assert one.meaning
        assert {f"{one.name}_low", f"{one.name}_high"} <= set(frame) or not one.estimated
    table = analysis_table(analysis, frame)
    assert len(table.rows) == len(frame)
    assert list(table.columns) == list(analysis.headings_of(frame).values())
    assert table.caption in table.to_markdown() or table.caption
    assert all(len(column) == len(frame) for column in table.columns.values())
    for figure in analysis.figures:
        assert figure.caption_of(frame)
        figure.draw(frame)
        plt.close("all")
    if analysis.in_run is not None:
        assert {figure.name for figure in analysis.figures} <= {figure.name for figure in FIGURES}
    for shown in (repr(found), found._repr_html_()):
        assert all(column in shown for column in found.printed_columns or list(frame)[:1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ASKED)
def test_the_command_prints_and_writes_what_python_returns(name, folder, tmp_path, monkeypatch, capsys):
    analysis, expected = registry.get(name), answer(name, folder).to_frame()
    words = ["ask", folder, name, *ASKED[name][0]]
    out = tmp_path / ("found" if analysis.kept else "found.csv")
    code, printed, err = run(monkeypatch, capsys, *words, "--out", out)
    assert code == 0, err
    table = analysis_table(analysis, expected)
    assert table.rows[0].split()[0] in printed
    if analysis.kept:
        ((kept, written),) = read_added(out).items()
        assert registry.analysis_of_file(kept) is analysis
        assert (out / "figures" / f"{kept}.pdf").is_file()
    else:
        written = pd.read_csv(out)
    pd.testing.assert_frame_equal(
        written, expected, check_dtype=False, check_index_type=False, check_column_type=False
    ) if "parameters" not in expected else np.testing.assert_allclose(written["ratio"], expected["ratio"])
    code, printed, err = run(monkeypatch, capsys, *words, "--json")
    assert code == 0, err
    assert len(json.loads(printed)["rows"]) == len(expected)


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
    code, out, _ = run(monkeypatch, capsys, "ask")
    assert code == 0
    for name, question in registry.questions().items():
        assert question in out
        assert f"→ {name}" in out
    code, _, err = run(monkeypatch, capsys, "ask", folder, "sucess-bins")
    assert code == 1
    assert "there is no question 'sucess-bins': did you mean success_bins?" in " ".join(err.split())


OWN = '''"""How long are the completions of each prompt?"""
from dataclasses import dataclass
from gradstats.analyses import Analysis, Result, Row, column

@dataclass(frozen=True)
class Length(Row):
    prompt: str = column("name of the prompt")
    length: float = column("mean number of tokens", "mean length", short=True)

@dataclass(frozen=True, repr=False)
class Lengths(Result):
    row = Length
    rows: tuple

def lengths(measured, *, longest: int = 10):
    """Return the prompts of the longest completions.

    Args:
        measured: a measurement.
        longest: how many prompts to list.
    """
    frame = measured.rollouts.frame.assign(length=measured.lengths)
    means = frame.groupby("prompt_id")["length"].mean().nlargest(longest)
    return Lengths(tuple(Length(str(name), float(mean)) for name, mean in means.items()))

question = Analysis(
    name="lengths", ask=lengths, options=("longest",), columns=Length.columns(), result=Lengths,
    row_name=lambda row: row["prompt"], row_heading="prompt", caption=lambda frame: "Lengths.",
)
'''


def test_a_question_of_ones_own(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_question_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, "ask", folder, "own_question_here:question", "--longest", 3, "--json")
    assert code == 0, err
    assert len(json.loads(out)["rows"]) == 3
    code, out, err = run(monkeypatch, capsys, "ask", folder, "own_question_here:question")
    assert code == 0, err
    assert "mean length" in out
