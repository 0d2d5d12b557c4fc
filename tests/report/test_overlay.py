"""Several runs on the same axes: labels, warnings, and what cannot be drawn together."""

from __future__ import annotations

import sys

import matplotlib as mpl
import pandas as pd
import pytest
from legibility import assert_legible
from saved_runs import save_run

from gradstats import plots
from gradstats.cli import commands
from gradstats.config.experiment import FiguresSection
from gradstats.report.figures import draw_overlay
from gradstats.report.saved_results import differing_settings, read_results, run_labels
from gradstats.system.files import read_json, write_json

mpl.use("Agg")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        save_run(folder / "warm", name="warm"),
        save_run(folder / "cool", name="cool", seed=1, sampling={"temperature": 0.6}),
    ]


def test_several_runs_are_labelled_and_warned_about(runs, monkeypatch, capsys, tmp_path):
    words = ["gradstats", "figures", *map(str, runs), "--out", str(tmp_path), "--formats", "svg", "--venue", "iclr"]
    monkeypatch.setattr(sys, "argv", words)
    commands.main()
    out, err = capsys.readouterr()
    assert "the runs differ in sampling.temperature (warm: 1.0, cool: 0.6)" in err
    assert [line.rsplit("/", 1)[1] for line in out.split()] == [
        "length_scaling.svg", "length_scaling.csv", "variance.svg", "variance.csv",
    ]  # fmt: skip
    table = pd.read_csv(tmp_path / "variance.csv")
    assert list(table["run"][:2]) == ["warm (temperature 1.0)", "cool (temperature 0.6)"]
    assert list(table["estimator"][:4]) == ["rloo", "rloo", "reinforce", "reinforce"]


def test_runs_alike_are_not_warned_about(runs):
    results = [read_results(runs[0])] * 2
    assert differing_settings(results) == {}
    assert run_labels(results) == ["warm", "warm"]


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


def test_different_references_are_different_units(runs, tmp_path):
    other = save_run(tmp_path / "other", name="other")
    about = read_json(other / "variance.json")
    write_json(other / "variance.json", about | {"reference": "reinforce"})
    with pytest.raises(
        ValueError, match=r"ratios are to different references \(rloo, reinforce\), which are different"
    ):
        draw_overlay([read_results(runs[0]), read_results(other)], tmp_path / "out", FiguresSection(formats=["svg"]))


def test_runs_in_different_metrics_are_not_drawn_together(runs, tmp_path):
    other = save_run(tmp_path / "other", name="other")
    metric = "adam(eps=1e-08, power=0.5, moments=1a2b)"
    alpha = read_json(other / "alpha.json")
    write_json(other / "alpha.json", alpha | {"metric": metric})
    results = [read_results(runs[0]), read_results(other)]
    assert [one.metric for one in results] == ["euclidean", metric]
    assert results[1].fit is not None
    assert results[1].fit.metric == metric
    with pytest.raises(
        ValueError, match=r"different metrics \(euclidean, adam\(.*\)\), whose norms have different units"
    ):
        draw_overlay(results, tmp_path / "out", FiguresSection(formats=["svg"]))


@pytest.mark.filterwarnings("ignore:the runs differ in sampling.temperature")
def test_many_estimators_are_drawn_in_a_panel_for_each_run(runs, tmp_path, monkeypatch):
    drawn, draw = [], plots.plot_variance_of_runs
    monkeypatch.setattr("gradstats.report.figures.MOST_ROWS", 1)
    monkeypatch.setattr(plots, "plot_variance_of_runs", lambda frame: drawn.extend(draw(frame)) or drawn)
    paths = draw_overlay(
        [read_results(run) for run in runs], tmp_path, FiguresSection(formats=["png"]), ["warm", "cool"]
    )
    assert [ax.get_title() for ax in drawn] == ["warm", "cool"]
    assert tmp_path / "variance.png" in paths


@pytest.mark.filterwarnings("ignore:the runs differ in sampling.temperature")
@pytest.mark.parametrize("column", ["half", "full"])
def test_panels_of_runs_with_long_names_have_letters(runs, tmp_path, monkeypatch, column):
    names = [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, after 200 steps of training",
        "Qwen/Qwen2.5-Math-1.5B-Instruct",
    ]
    figures = {}
    monkeypatch.setattr("gradstats.report.figures.MOST_ROWS", 1)
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: figures.setdefault(stem.name, figure) and [stem]
    )
    monkeypatch.setattr("matplotlib.pyplot.close", lambda _: None)
    style = FiguresSection(venue="neurips", column=column, formats=["png"])
    draw_overlay([read_results(run) for run in runs], tmp_path, style, names)
    figure = figures["variance"]
    figure.canvas.draw()
    assert_legible(figure)
    assert [ax.get_title() for ax in figure.axes] == ["a", "b"]
    assert figure.get_supxlabel().replace("\n", " ") == f"a: {names[0]} b: {names[1]}"


@pytest.mark.filterwarnings("ignore:the runs differ in sampling.temperature")
@pytest.mark.parametrize("column", ["half", "full"])
def test_long_names_of_models_fit_below_the_axes(runs, tmp_path, monkeypatch, column):
    names = ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B (temperature 1)", "Qwen/Qwen2.5-Math-1.5B-Instruct (step 200)"]
    figures = {}
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: figures.setdefault(stem.name, figure) and [stem]
    )
    monkeypatch.setattr("matplotlib.pyplot.close", lambda _: None)
    style = FiguresSection(venue="neurips", column=column, formats=["png"])
    draw_overlay([read_results(run) for run in runs], tmp_path, style, names)
    for figure in figures.values():
        figure.canvas.draw()
        assert_legible(figure)
        assert figure.axes[0].get_position().width > 0.4
        assert figure.axes[0].get_window_extent().height / figure.dpi > 0.5
    (legend,) = figures["length_scaling"].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len([text for text in texts if r"$\alpha$" in text]) == 2
    written = figures["variance"].get_supxlabel().replace("\n", " ")
    assert written == f"a: {names[0]} b: {names[1]}"


def test_each_run_states_its_own_size_where_sizes_differ(runs, tmp_path, monkeypatch):
    smaller = save_run(tmp_path / "smaller", name="smaller", sampling={"group_size": 2})
    about = read_json(smaller / "alpha.json") | {"n": 120}
    write_json(smaller / "alpha.json", about)
    table = pd.read_csv(smaller / "variance.csv").assign(group_size=8)
    table.to_csv(smaller / "variance.csv", index=False)
    figures = {}
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: figures.setdefault(stem.name, figure) and [stem]
    )
    monkeypatch.setattr("matplotlib.pyplot.close", lambda _: None)
    style = FiguresSection(venue="neurips", column="half")
    with pytest.warns(UserWarning, match=r"the runs differ in sampling\.group_size"):
        draw_overlay([read_results(runs[0]), read_results(smaller)], tmp_path / "out", style)
    for figure in figures.values():
        figure.canvas.draw()
        assert_legible(figure)
        assert figure.get_suptitle() == ""
    figure = figures["variance"]
    written = figure.get_supxlabel().replace("\n", " ")
    assert written == "a: warm, 15 prompts × 4 completions b: smaller, 15 prompts × 8 completions"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:2] == ["RLOO", "REINFORCE"]


def test_the_size_of_all_runs_is_stated_once(runs, tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: sizes.append(figure.get_suptitle()) or [stem]
    )
    draw_overlay([read_results(runs[0])] * 2, tmp_path, FiguresSection(), ["one", "two"])
    assert sizes == ["15 prompts × 4 completions"] * 2


def test_letters_and_the_legend_stand_below_each_other(runs, tmp_path, monkeypatch):
    bounded = save_run(tmp_path / "bounded", name="bounded")
    table = pd.read_csv(bounded / "variance.csv")
    table.loc[table["matched_ratio"].isna(), "matched_ratio_low"] = 0.8
    table.to_csv(bounded / "variance.csv", index=False)
    figures = {}
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, stem, *_, **__: figures.setdefault(stem.name, figure) and [stem]
    )
    monkeypatch.setattr("matplotlib.pyplot.close", lambda _: None)
    names = ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "Qwen/Qwen2.5-Math-1.5B-Instruct"]
    style = FiguresSection(venue="neurips", column="half")
    draw_overlay([read_results(bounded)] * 2, tmp_path / "out", style, names)
    figure = figures["variance"]
    figure.canvas.draw()
    assert_legible(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["interval alone, no estimate"]
    assert legend.get_title().get_text() == f"a: {names[0]}\nb: {names[1]}"
