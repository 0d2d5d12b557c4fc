"""The figures of a run, and those of several runs on the same axes, drawn from saved numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from gradstats import plots
from gradstats.analyses import registry
from gradstats.analyses.declaration import ORDER, Analysis, AnalysisFigure
from gradstats.config.sections import FiguresSection
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.plots.length_scaling import leave_room
from gradstats.plots.marks import legend_below, legend_height
from gradstats.plots.names import CHARACTER, LABELS, group_size_of, in_mathematics, longest_title, widening, wrapped
from gradstats.plots.save import (
    DETERMINISTIC,
    METADATA,
    claim_figure,
    laid_out,
    sample_size,
    sample_size_of,
    write_sample_size,
)
from gradstats.plots.style import palette
from gradstats.report.saved_results import SavedResults, differing_settings, run_labels
from gradstats.stats import LengthScalingFit


@dataclass(frozen=True)
class RunFigure:
    """One figure of a run: its name among files, what declares it, and the rows that it draws."""

    name: str
    declared: AnalysisFigure
    table: pd.DataFrame

    @property
    def caption(self) -> str:
        """Its caption."""
        return self.declared.caption_of(self.table)


def figures_of(run: SavedResults, figure_style: FiguresSection | None = None) -> list[RunFigure]:
    """Return the figures that a run has the numbers for, in the order of the questions and of the figures of each."""
    style = run.figure_style if figure_style is None else figure_style
    names: dict[str, list[str]] = {}  # of the answers to each question
    for name, answer in run.answers.items():
        names.setdefault(answer.question, []).append(name)
    declared = {one.name: one for one in registry.all_analyses()} | {
        label: registry.of_answer(label) for label in names
    }
    found: list[RunFigure] = []
    for label, analysis in declared.items():
        for figure in analysis.figures if isinstance(analysis, Analysis) else ():
            # A question may be drawn from the table of another, which every run answers.
            for name in names.get(label, [""] if figure.table else []):
                named = figure.name if name in ("", label) or ":" in label else name
                found += _with_rows(run, named, figure, figure.table or name, style)
    return found


def _with_rows(
    run: SavedResults, name: str, figure: AnalysisFigure, table: str, style: FiguresSection
) -> list[RunFigure]:
    """Return a figure with the rows to draw; nothing where there are none."""
    frame = run.table(table)
    frame = None if frame is None else figure.rows(frame)
    frame = None if frame is None else chosen_rows(frame, style)
    return [] if frame is None else [RunFigure(name, figure, frame)]


class DrawnFigures(NamedTuple):
    """The files written for a run, and for the report its figures as SVG, by their names."""

    paths: list[Path]
    svgs: dict[str, str]


def draw_run(run: SavedResults, folder: Path, figure_style: FiguresSection) -> list[Path]:
    """Draw every figure that a run has the numbers for, each with its table next to it; returns the paths."""
    return _draw(run, folder, figure_style, svg=False).paths


def draw_run_for_report(run: SavedResults, folder: Path, figure_style: FiguresSection) -> DrawnFigures:
    """Draw as :func:`draw_run`, and keep each figure as SVG for the report, which then needs no drawing of its own."""
    return _draw(run, folder, figure_style, svg=True)


def figures_as_svg(run: SavedResults) -> dict[str, str]:
    """Name → SVG of every figure that a run has the numbers for, in the style that its experiment asks for."""
    return {listed.name: _svg(figure) for listed, figure in run_figures(run, run.figure_style)}


def first_figure_as_svg(run: SavedResults) -> tuple[RunFigure, str] | None:
    """Return the first figure that a run has the numbers for, as it is listed and as SVG; None where it has none."""
    # Closed before anything else is drawn: its style would otherwise end in the middle of that.
    with closing(run_figures(run, run.figure_style)) as figures:
        return next(((listed, _svg(figure)) for listed, figure in figures), None)


def claim_figures(run: SavedResults, folder: Path, figure_style: FiguresSection) -> None:
    """Refuse to draw a run where files lie that are not earlier figures, before anything is drawn."""
    for listed in figures_of(run, figure_style):
        claim_figure(folder / listed.name, figure_style.formats, list(map(str, listed.table)))


def run_figures(run: SavedResults, figure_style: FiguresSection) -> Generator[tuple[RunFigure, Figure], None, None]:
    """Yield each figure of a run as listed and as drawn; it is closed when the next is asked for."""
    for listed in figures_of(run, figure_style):
        listed.table.attrs.setdefault("metric", run.metric)  # tables of tokens do not record it
        with styled(figure_style) as current_figure:
            listed.declared.draw(listed.table)
            write_sample_size(current_figure(), sample_size_of_run(run, listed.table))
            yield listed, current_figure()


def sample_size_of_run(run: SavedResults, table: pd.DataFrame | None = None) -> str:
    """Return how many prompts and completions a table of a run rests on, in words; "" where neither is known."""
    if table is not None and (stated := sample_size_of(table)):
        return stated
    group_size = None if table is None else group_size_of(table)
    if run.alpha is not None:
        return sample_size(run.alpha["n_prompts"], run.alpha["n"], group_size)
    n_prompts, n = run.manifest.get("n_prompts"), run.manifest.get("n_sequences")
    return "" if n_prompts is None or n is None else sample_size(n_prompts, n, group_size)


def chosen_rows(table: pd.DataFrame, figure_style: FiguresSection) -> pd.DataFrame | None:
    """Return the rows of the estimators to draw, in their order, with the names that they are given."""
    if "estimator" not in table:
        return table
    attrs = table.attrs | {LABELS: figure_style.labels, ORDER: figure_style.order}
    if figure_style.estimators:
        place = {label: at for at, label in enumerate(figure_style.estimators)}
        rows = table.loc[table["estimator"].isin(list(place))]
        table = rows.sort_values("estimator", key=lambda labels: labels.map(place), kind="stable", ignore_index=True)
    else:
        table = table.copy()
    table.attrs = attrs
    return None if table.empty else table


def _warn_of_unused_labels(runs: Sequence[SavedResults], figure_style: FiguresSection) -> None:
    """Name the labels to which the user gave a name, but which no run and no estimator of its tables has."""
    tables = [answer.frame for run in runs for answer in run.answers.values()]
    found = {name for run in runs for name in (run.name, run.path.resolve().name)}
    for table in tables:
        for column in ("estimator", "recipe"):
            if column in table:
                found |= {str(label).removeprefix(PREFIX) for label in table[column]}
    unused = [label for label in figure_style.labels if label.removeprefix(PREFIX) not in found]
    if unused:
        warnings.warn(
            f"labels: no run and no estimator is called {' or '.join(map(repr, unused))}: the name given is not used. "
            "Write an estimator as its tables in CSV do",
            UserWarning,
            stacklevel=2,
        )


def refuse_unknown_estimators(runs: Sequence[SavedResults], figure_style: FiguresSection) -> None:
    """Refuse to draw an estimator that none of the runs compared."""
    known = dict.fromkeys(str(label) for run in runs if run.variance is not None for label in run.variance["estimator"])
    for label in figure_style.estimators:
        if label not in known:
            raise ValueError(f"estimators: no run has a row of {label!r}: choose from {', '.join(known)}")


@contextmanager
def styled(figure_style: FiguresSection) -> Iterator[Callable[[], Figure]]:
    """Return the venue's style; yields a function that returns the figure drawn, which is closed at the end."""
    with mpl.rc_context(plots.style(figure_style.venue, figure_style.column, theme=figure_style.theme)):  # pyright: ignore[reportArgumentType]
        before = set(plt.get_fignums())
        try:
            with warnings.catch_warnings():
                # An axis of ratios none of which is resolved: the notes of the comparison say so.
                warnings.filterwarnings("ignore", message="Data has no positive values")
                yield plt.gcf
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def _draw(run: SavedResults, folder: Path, figure_style: FiguresSection, svg: bool) -> DrawnFigures:
    drawn = DrawnFigures([], {})
    refuse_unknown_estimators([run], figure_style)
    _warn_of_unused_labels([run], figure_style)
    claim_figures(run, folder, figure_style)
    for listed, figure in run_figures(run, figure_style):
        with laid_out(figure):
            stem = folder / listed.name
            drawn.paths.extend(plots.save_figure(figure, stem, figure_style.formats, source=listed.table))
            if svg:
                drawn.svgs[listed.name] = _svg(figure)
    if not drawn.paths:
        raise FileNotFoundError(
            f"{run.path} holds no numbers that can be drawn: `gradstats run EXPERIMENT --out {run.path}` makes them"
        )
    return drawn


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context(DETERMINISTIC), laid_out(figure):
        figure.savefig(text, format="svg", metadata=METADATA["svg"])
    return text.getvalue()


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# More estimators than these are drawn in a panel for each run, up to so many runs.
_MOST_ROWS, _MOST_PANELS = 12, 3
# Between the metrics of runs that differ in it.
OR = " or "
# Settings that a name need not state, since the figure states prompts × completions.
_IN_SAMPLE_SIZE = ("sampling.group_size", "variance.group_size")


def draw_overlay(
    runs: list[SavedResults], folder: Path, figure_style: FiguresSection, labels: list[str] | None = None
) -> list[Path]:
    """Draw several runs on the same axes, labelled, and warn where their settings differ."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        raise ValueError(
            f"the runs were measured in different metrics ({', '.join(metrics)}), whose norms have different "
            "units: draw those of one metric together"
        )
    refuse_unknown_estimators(runs, figure_style)
    _warn_of_unused_labels(runs, figure_style)
    for name in ("length_scaling", "variance"):
        claim_figure(folder / name, figure_style.formats)
    labels, n = _with_sample_sizes(runs, labels or _run_names(runs, figure_style))
    for setting, values in differing_settings(runs).items():
        values_by_run = ", ".join(f"{run.path.name}: {value}" for run, value in zip(runs, values, strict=True))
        warnings.warn(
            f"the runs differ in {setting} ({values_by_run}); they are drawn together and labelled, but do not measure "
            "the same thing",
            UserWarning,
            stacklevel=2,
        )
    compared = all(run.variance is not None for run in runs)
    frame = stacked(list(zip(labels, runs, strict=True)), figure_style) if compared else None
    paths: list[Path] = []
    fits = [run.fit for run in runs if run.fit is not None]
    if len(fits) == len(runs):
        with styled(figure_style) as current_figure:
            ax, colors = None, palette()
            for at, (fit, label, run) in enumerate(zip(fits, labels, runs, strict=True)):
                published, color = _published(runs[0]) if at == 0 else None, colors[at % len(colors)]
                ax = plots.plot_length_scaling(
                    fit, ax=ax, label=label, color=color, published=published, confidence_level=run.level_of_alpha
                )
            _legend_of_fits(ax, fits[-1])
            write_sample_size(current_figure(), n)
            points = pd.concat([run.points.assign(run=name) for run, name in zip(runs, labels, strict=True)])  # pyright: ignore[reportOptionalMemberAccess]
            paths += plots.save_figure(current_figure(), folder / "length_scaling", figure_style.formats, source=points)
    if frame is not None:
        with styled(figure_style) as current_figure:
            if len(set(frame["estimator"])) > _MOST_ROWS and len(runs) <= _MOST_PANELS:
                axes = plots.plot_variance_of_runs(frame)
                if max(map(len, labels)) > 2 * longest_title(len(runs)):
                    for ax, letter in zip(axes, _LETTERS, strict=False):
                        ax.set_title(letter, fontsize="medium")
                    _explain_letters(current_figure(), labels)
            else:
                plots.plot_variance(frame)
                _explain_letters(current_figure(), labels)
            write_sample_size(current_figure(), n)
            paths += plots.save_figure(current_figure(), folder / "variance", figure_style.formats, source=frame)
    if not paths:
        raise ValueError(
            f"no figure's numbers are in all of {', '.join(str(run.path) for run in runs)}: `gradstats run` makes them"
        )
    return paths


def _published(run: SavedResults) -> str | None:
    """Return the data set of published points that an experiment lays under its fit."""
    return None if run.points is None else run.points.attrs.get("published")


def _legend_of_fits(ax: Axes | None, fit: LengthScalingFit) -> None:
    """Put the names of runs with their α below the axes, where long ones have the width of the figure."""
    assert ax is not None
    inside = ax.get_legend()
    if inside is not None:
        inside.remove()
    leave_room(ax, fit, 0)
    font_size = plt.rcParams["legend.fontsize"]
    width, height = plt.rcParams["figure.figsize"]
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    extra = legend_height(ax.get_legend_handles_labels()[1], font_size=font_size)
    figure.set_size_inches(width, height + extra)
    legend_below(ax, font_size=font_size)


def _explain_letters(figure: Figure, labels: list[str]) -> None:
    """Write below a figure which run each letter stands for, over the full width."""
    font_size = plt.rcParams["legend.fontsize"]
    width, height = figure.get_size_inches()
    longest = int(0.95 * width / CHARACTER * 8.0 / font_size / widening())
    lines = [line for at, label in enumerate(labels) for line in wrapped(f"{_LETTERS[at]}: {label}", longest)]
    figure.set_size_inches(width, height + (0.135 * len(lines) + 0.06) * font_size / 7.0)
    text = in_mathematics("\n".join(lines))
    if figure.legends:  # both stand below the axes
        (legend,) = figure.legends
        legend.set_title(text, prop=FontProperties(size=font_size))
        legend.set_alignment("left")
    else:
        figure.supxlabel(text, x=0.02, ha="left", fontsize=font_size)


def _with_sample_sizes(runs: list[SavedResults], labels: list[str]) -> tuple[list[str], str]:
    """Return the names of runs, with prompts × completions of each where these differ; and those of all of them."""
    sizes = [sample_size_of_run(run) for run in runs]
    if len(set(sizes)) == 1:
        return labels, sizes[0]
    return [f"{label}, {size}" if size else label for label, size in zip(labels, sizes, strict=True)], ""


def _run_names(runs: list[SavedResults], figure_style: FiguresSection) -> list[str]:
    """Return what the user calls each run, by its name or that of its folder; otherwise its label.

    A name that several runs share stands for none of them.
    """
    chosen = figure_style.labels
    names, folders = [run.name for run in runs], [run.path.resolve().name for run in runs]
    of_folder = {folder: chosen.get(folder) for folder in folders if folders.count(folder) == 1}
    of_name = {name: chosen.get(name) for name in names if names.count(name) == 1}
    return [
        of_folder.get(run.path.resolve().name) or of_name.get(run.name) or label
        for run, label in zip(runs, run_labels(runs, without=_IN_SAMPLE_SIZE), strict=True)
    ]


def stacked(runs: Sequence[tuple[str, SavedResults]], figure_style: FiguresSection) -> pd.DataFrame | None:
    """Return the comparisons of named runs estimator by estimator; None where no run has a row of those to show."""
    frames = [(name, run.variance) for name, run in runs if run.variance is not None]
    if not frames:
        return None
    references = list(dict.fromkeys(str(frame.attrs.get("reference")) for _, frame in frames))
    if len(references) > 1:
        raise ValueError(
            f"the runs' ratios are to different references ({', '.join(references)}), which are different units: "
            "compare each run again with the same `variance: {reference: …}`"
        )
    joined = pd.concat([frame.assign(run=name) for name, frame in frames], ignore_index=True)
    order = {label: at for at, label in enumerate(dict.fromkeys(joined["estimator"]))}
    joined = joined.sort_values("estimator", key=lambda labels: labels.map(order), kind="stable", ignore_index=True)
    joined.attrs = {"reference": references[0], "metric": OR.join(dict.fromkeys(run.metric for _, run in runs))}
    return chosen_rows(joined, figure_style)
