"""Several runs on the same axes: labels, warnings, and what cannot be drawn together."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from command_line import run
from legibility import assert_legible
from saved_runs import save_answer, save_run, saved_answer
from small_runs import only_two_figures

from gradstats import plots
from gradstats.analyses import registry
from gradstats.answers import Answer
from gradstats.config.experiment import FiguresSection
from gradstats.report import figures
from gradstats.report.figures import (
    draw_overlay,
    draw_run,
    draw_run_for_report,
    run_figures,
    sample_size_of_run,
)
from gradstats.report.page import report_page
from gradstats.report.saved_results import read_results, run_labels


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        save_run(folder / "warm", name="warm"),
        save_run(folder / "cool", name="cool", seed=1, sampling={"temperature": 0.6}),
    ]


@pytest.fixture
def kept(monkeypatch):
    """The figures that are drawn, by the names of their files; they are not written, and stay open."""
    figures = {}
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: figures.setdefault(stem.name, figure) and [stem]
    )
    monkeypatch.setattr("matplotlib.pyplot.close", lambda _: None)
    return figures


def test_a_run_is_drawn_byte_identically_in_every_format(runs, tmp_path, monkeypatch):
    only_two_figures(monkeypatch)
    figure_style = FiguresSection(venue="acl", column="half", formats=["pdf", "svg", "png", "pgf"])
    builds = [draw_run(read_results(runs[0]), tmp_path / name, figure_style) for name in ("one", "two")]
    assert [path.read_bytes() for path in builds[0]] == [path.read_bytes() for path in builds[1]]
    assert {path.suffix[1:] for path in builds[0]} >= {*figure_style.formats}
    for path in builds[0]:
        if path.suffix == ".pdf":
            content = path.read_bytes()
            assert b"/Type3" not in content
            assert f"/MediaBox [ 0 0 {3.03 * 72:.2f}".rstrip("0").encode() in content
        if path.suffix == ".pgf":
            assert r"\pgfqpoint{3.030000in}" in path.read_text()
            assert "setmainfont" not in path.read_text()


def test_drawing_reporting_and_reading_logs_import_no_torch(runs, tmp_path):
    (tmp_path / "log.csv").write_text("prompt,reward,length\nq,1,3\nq,0,1\np,1,2\np,0,4\n")
    code = "import sys\nfrom gradstats.cli import commands\n"
    for words in (
        ["export", str(runs[0]), "--out", str(tmp_path), "--only", "tables"],
        ["report", str(runs[0]), "--out", str(tmp_path / "r.html")],
        ["log", str(tmp_path / "log.csv")],
    ):
        code += f"sys.argv[1:] = {words}\ncommands.main()\n"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_list_names_each_figure_once_with_a_caption():
    figures = [figure for one in registry.all_analyses() for figure in one.figures]
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(figure.caption.endswith(".") for figure in figures if isinstance(figure.caption, str))


def test_each_figure_is_drawn_once_for_folder_and_report(runs, tmp_path, monkeypatch):
    only_two_figures(monkeypatch)
    drawn = []
    all_figures = figures.figures_of

    def counted(run, style=None):
        for one in all_figures(run, style):
            draw = one.declared.draw
            noted = replace(one.declared, draw=lambda table, one=one, draw=draw: (drawn.append(one.name), draw(table)))
            yield replace(one, declared=noted)

    monkeypatch.setattr(figures, "figures_of", lambda run, style=None: list(counted(run, style)))
    saved = read_results(runs[0])
    written = draw_run_for_report(saved, tmp_path, saved.figure_style)
    page = report_page(saved, written.svgs)
    assert len(set(drawn)) == len(drawn) == 2
    assert {path.stem for path in written.paths} == set(written.svgs) == set(drawn)
    # The page by itself draws the same figures.
    alone = report_page(saved)
    assert len(drawn) == 4
    captions = [re.findall(r'<svg role="img" aria-label="([^"]*)"', text) for text in (page, alone)]
    assert captions[0] == captions[1]
    assert len(captions[0]) == 2


def test_a_figure_whose_numbers_are_missing_is_left_out(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    for suffix in ("csv", "json"):
        (folder / "tables" / f"length_bins.{suffix}").unlink()
    whole, without = ({one.name for one in figures.figures_of(read_results(each))} for each in (runs[0], folder))
    assert len(whole) == 9
    assert whole - without == {"length_bins"}


def test_chosen_names_are_drawn_in_the_order_of_the_list_or_by_value(runs):
    run = read_results(runs[0])
    chosen = {"estimators": ["reinforce", "rloo"], "labels": {"reinforce": "no baseline"}}
    for order, rows in (("listed", ["no baseline", "RLOO"]), ("value", ["RLOO", "no baseline"])):
        style = FiguresSection.model_validate(chosen | {"order": order})
        figure = next(figure for listed, figure in run_figures(run, style) if listed.name == "variance")
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == rows


def test_a_name_that_is_given_to_nothing_is_named(runs, tmp_path):
    style = FiguresSection(formats=["svg"], labels={"rlooo": "mine", "rloo": "RLOO", "recipe:grpo": "GRPO"})
    with pytest.warns(UserWarning, match=r"no estimator is called 'rlooo' or 'recipe:grpo'"):
        draw_run(read_results(runs[0]), tmp_path / "out", style)


def test_every_figure_states_prompts_and_completions(runs):
    for listed, figure in run_figures(read_results(runs[0]), FiguresSection()):
        assert figure.get_suptitle() == "15 prompts × 4 completions", listed.name


def test_a_comparison_of_fewer_prompts_states_their_number(runs):
    run = read_results(runs[0])
    assert run.variance is not None
    run.variance.attrs |= {"n_prompts": 14, "n_completions": 56}
    assert sample_size_of_run(run, run.variance) == "14 prompts × 4 completions"
    unknown = replace(run, answers={}, manifest={})
    assert sample_size_of_run(unknown) == ""
    assert (
        sample_size_of_run(replace(unknown, manifest={"n_prompts": 2, "n_sequences": 6})) == "2 prompts × 3 completions"
    )


def test_several_runs_are_labelled_and_warned_about(runs, monkeypatch, capsys, tmp_path):
    words = ("--only", "figures", "--out", tmp_path, "--formats", "svg", "--venue", "iclr")
    _, out, err = run(monkeypatch, capsys, "export", *runs, *words)
    assert "the runs differ in sampling.temperature (warm: 1.0, cool: 0.6)" in err
    assert out == f"{tmp_path}: 2 figures (svg, csv)\n"
    assert {path.name for path in tmp_path.iterdir()} == {
        "length_scaling.svg", "length_scaling.csv", "variance.svg", "variance.csv",
    }  # fmt: skip
    table = pd.read_csv(tmp_path / "variance.csv")
    assert list(table["run"][:2]) == ["warm (temperature 1.0)", "cool (temperature 0.6)"]
    assert list(table["estimator"][:4]) == ["rloo", "rloo", "reinforce", "reinforce"]


@pytest.mark.filterwarnings("ignore:labels. no run and no estimator is called 'typo'")
def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    folders = [tmp_path / name for name in ("one/demo", "two/demo", "long")]
    results = [read_results(save_run(folder, name="demo")) for folder in folders]
    assert run_labels(results) == list(map(str, folders))
    assert run_labels(results[1:]) == ["demo", "long"]
    # A chosen name goes to a run only where it is that run's alone.
    style = FiguresSection(venue="icml", formats=["svg"], labels={"demo": "7B", "typo": "unused"})
    draw_overlay(results[1:], tmp_path / "out", style)
    table = pd.read_csv(tmp_path / "out" / "variance.csv")
    assert list(table["run"][:2]) == ["7B", "long"]


METRIC = "adam(eps=1e-08, power=0.5, moments=1a2b)"


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"reference": "reinforce"}, r"ratios are to different references \(rloo, reinforce\), which are different"),
        ({"metric": METRIC}, r"different metrics \(euclidean, adam\(.*\)\), whose norms have different units"),
    ],
)
def test_runs_in_different_units_are_not_drawn_together(runs, tmp_path, about, message):
    other = save_run(tmp_path / "other", name="other")
    for name in ("alpha", "variance", "length_scaling"):
        save_answer(other, saved_answer(other, name), **about)
    results = [read_results(runs[0]), read_results(other)]
    assert [one.metric for one in results] == ["euclidean", about.get("metric", "euclidean")]
    assert results[1].fit.metric == results[1].metric
    with pytest.raises(ValueError, match=message):
        draw_overlay(results, tmp_path / "out", FiguresSection(formats=["svg"]))


@pytest.mark.filterwarnings("ignore:the runs differ in sampling.temperature")
@pytest.mark.parametrize("column", ["half", "full"])
def test_long_names_of_models_fit_below_the_axes_and_above_panels(runs, tmp_path, kept, column, monkeypatch):
    names = [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, after 200 steps of training",
        "Qwen/Qwen2.5-Math-1.5B-Instruct",
    ]
    style = FiguresSection(venue="neurips", column=column, formats=["png"])
    with monkeypatch.context() as patched:
        patched.setattr("gradstats.report.figures._MOST_ROWS", 1)
        draw_overlay([read_results(run) for run in runs], tmp_path, style, names)
    panels = kept.pop("variance")
    panels.canvas.draw()
    assert_legible(panels)
    assert [ax.get_title() for ax in panels.axes] == ["a", "b"]
    assert panels.get_supxlabel().replace("\n", " ") == f"a: {names[0]} b: {names[1]}"
    kept.clear()
    draw_overlay([read_results(run) for run in runs], tmp_path, style, names)
    for figure in kept.values():
        figure.canvas.draw()
        assert_legible(figure)
        assert figure.axes[0].get_position().width > 0.4
        assert figure.axes[0].get_window_extent().height / figure.dpi > 0.5
    (legend,) = kept["length_scaling"].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len([text for text in texts if r"$\alpha$" in text]) == 2
    written = kept["variance"].get_supxlabel().replace("\n", " ")
    assert written == f"a: {names[0]} b: {names[1]}"


def test_each_run_states_its_own_size_where_sizes_differ(runs, tmp_path, kept):
    smaller = save_run(tmp_path / "smaller", name="smaller", sampling={"group_size": 2})
    save_answer(smaller, Answer.read(smaller / "alpha"), n=120)
    compared = Answer.read(smaller / "variance")
    save_answer(smaller, replace(compared, frame=compared.frame.assign(group_size=8)), n_completions=120)
    style = FiguresSection(venue="neurips", column="half")
    with pytest.warns(UserWarning, match=r"the runs differ in sampling\.group_size"):
        draw_overlay([read_results(runs[0]), read_results(smaller)], tmp_path / "out", style)
    for figure in kept.values():
        figure.canvas.draw()
        assert_legible(figure)
        assert figure.get_suptitle() == ""
    figure = kept["variance"]
    written = figure.get_supxlabel().replace("\n", " ")
    assert written == "a: warm, 15 prompts × 4 completions b: smaller, 15 prompts × 8 completions"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:2] == ["RLOO", "REINFORCE"]


def test_the_size_of_all_runs_is_stated_once(runs, tmp_path, kept):
    draw_overlay([read_results(runs[0])] * 2, tmp_path, FiguresSection(), ["one", "two"])
    assert [figure.get_suptitle() for figure in kept.values()] == ["15 prompts × 4 completions"] * 2
