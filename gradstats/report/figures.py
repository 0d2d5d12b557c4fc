"""The figures of a run, each declared once and drawn once from saved numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from gradstats import plots
from gradstats.config.experiment import FiguresSection
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.plots.names import LABELS
from gradstats.plots.sample_size import sample_size, sample_size_of, write_sample_size
from gradstats.plots.save import DETERMINISTIC, METADATA, refuse_foreign_figure
from gradstats.report.curves import curve_caption, draw_curve
from gradstats.report.run_figures import FIGURES, ORDER, RunFigure
from gradstats.report.saved_frames import CRITIC, OPTIMAL_BASELINES
from gradstats.report.saved_results import SavedResults


@dataclass(frozen=True)
class DrawnFigures:
    """The results of drawing a run.

    Attributes:
        paths: the files written.
        svgs: name → the figure as SVG, for the report.
    """

    paths: list[Path]
    svgs: dict[str, str]


def draw_run(run: SavedResults, folder: Path, figure_style: FiguresSection) -> list[Path]:
    """Draw every figure that a run has the numbers for, each with its table next to it; returns the paths.

    Raises:
        FileNotFoundError: when it has numbers for none; states the command that writes them.
    """
    return _draw(run, folder, figure_style, svg=False).paths


def draw_run_for_report(run: SavedResults, folder: Path, figure_style: FiguresSection) -> DrawnFigures:
    """Draw as :func:`draw_run`, and keep each figure as SVG for the report, which then needs no drawing of its own.

    Raises:
        FileNotFoundError: as :func:`draw_run`.
    """
    return _draw(run, folder, figure_style, svg=True)


def figures_as_svg(run: SavedResults) -> dict[str, str]:
    """Name → SVG of every figure that a run has the numbers for, in the style that its experiment asks for."""
    return {listed.name: _svg(figure) for listed, figure, _ in run_figures(run, run.figure_style)}


def first_figure_as_svg(run: SavedResults) -> tuple[RunFigure, str] | None:
    """Return the first figure that a run has the numbers for, as it is listed and as SVG; None where it has none."""
    # Closed before anything else is drawn: its style would otherwise end in the middle of that.
    with closing(run_figures(run, run.figure_style)) as figures:
        return next(((listed, _svg(figure)) for listed, figure, _ in figures), None)


def refuse_foreign_figures(run: SavedResults, folder: Path, figure_style: FiguresSection) -> None:
    """Refuse to draw a run where files lie that are not earlier figures, before anything is drawn.

    Raises:
        FileExistsError: in that case.
    """
    for listed in figures_of(run):
        table = listed.needs(run)
        if table is not None:
            refuse_foreign_figure(folder / listed.name, figure_style.formats, list(map(str, table)))


def run_figures(
    run: SavedResults, figure_style: FiguresSection
) -> Generator[tuple[RunFigure, Figure, pd.DataFrame], None, None]:
    """Yield each figure of a run as listed, as drawn, and its table; a figure is closed when the next is asked for."""
    yield from _drawn(run, figures_of(run), figure_style)


def figures_of(run: SavedResults) -> list[RunFigure]:
    """Return the figures that a run may have: those of every run, and one of each table that a command added."""
    return [*FIGURES, *(added_figure(name, frame) for name, frame in run.added.items())]


def added_figure(name: str, frame: pd.DataFrame) -> RunFigure:
    """Return the figure of a table that a command added to a run."""
    if name == OPTIMAL_BASELINES:
        caption = (
            "Variance of learned, published and oracle baselines over that of the oracle of measured norms; thin bars "
            "hold for all rows at once."
        )
        return RunFigure(
            name, caption, lambda run: run.added.get(name), lambda run, table: plots.plot_variance(table, value="ratio")
        )
    if name == CRITIC:
        caption = (
            "Bias and explained variance of the value head where steps begin, against Monte-Carlo values; "
            "open diamonds: after a wrong step, by the outcome."
        )
        return RunFigure(name, caption, lambda run: run.added.get(name), lambda run, table: plots.plot_critic(table))
    return RunFigure(name, curve_caption(frame), lambda run: run.added.get(name), lambda run, table: draw_curve(table))


def sample_size_of_run(run: SavedResults, table: pd.DataFrame | None = None) -> str:
    """Return how many prompts and completions a table of a run rests on, in words; "" where neither is known.

    Args:
        run: the run.
        table: a comparison; None, or any other table, rests on all completions that were measured.
    """
    stated = next((text for one in (table, run.variance) if one is not None and (text := sample_size_of(one))), "")
    if stated:
        return stated
    if run.alpha is not None:
        return sample_size(run.alpha["n_prompts"], run.alpha["n"])
    n_prompts, n = run.manifest.get("n_prompts"), run.manifest.get("n_sequences")
    return "" if n_prompts is None or n is None else sample_size(n_prompts, n)


def chosen_rows(table: pd.DataFrame, figure_style: FiguresSection) -> pd.DataFrame | None:
    """Return the rows of the estimators to draw, in their order, with the names that they are given.

    Args:
        table: behind a figure; one without estimators is returned as it is.
        figure_style: ``estimators``, ``order`` and ``labels``.

    Returns:
        The rows with ``.attrs`` of the names and of the order; None where no estimator to draw has a row.
    """
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


def warn_of_unused_labels(runs: Sequence[SavedResults], figure_style: FiguresSection) -> None:
    """Name the labels to which the user gave a name, but which no run and no estimator of its tables has."""
    tables = [table for run in runs for table in (run.variance, *run.breakdowns.values(), *run.added.values())]
    found = {name for run in runs for name in (run.name, run.path.resolve().name)}
    for table in tables:
        for column in ("estimator", "recipe"):
            if table is not None and column in table:
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
    """Refuse to draw an estimator that none of the runs compared.

    Raises:
        ValueError: naming it, and those that there are.
    """
    known = dict.fromkeys(str(label) for run in runs if run.variance is not None for label in run.variance["estimator"])
    for label in figure_style.estimators:
        if label not in known:
            raise ValueError(f"estimators: no run has a row of {label!r}: choose from {', '.join(known)}")


def _drawn(
    run: SavedResults, figures: Sequence[RunFigure], figure_style: FiguresSection
) -> Iterator[tuple[RunFigure, Figure, pd.DataFrame]]:
    for listed in figures:
        table = listed.needs(run)
        table = None if table is None else chosen_rows(table, figure_style)
        if table is not None:
            table.attrs.setdefault("metric", run.metric)  # tables of tokens do not record it
            with styled(figure_style) as current_figure:
                listed.draw(run, table)
                write_sample_size(current_figure(), sample_size_of_run(run, table))
                yield listed, current_figure(), table


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
    warn_of_unused_labels([run], figure_style)
    refuse_foreign_figures(run, folder, figure_style)
    for listed, figure, table in run_figures(run, figure_style):
        drawn.paths.extend(plots.save_figure(figure, folder / listed.name, figure_style.formats, source=table))
        if svg:
            if figure_style.formats:  # writing the files has settled the layout
                figure.set_layout_engine("none")
            drawn.svgs[listed.name] = _svg(figure)
    if not drawn.paths:
        raise FileNotFoundError(
            f"{run.path} holds no numbers that can be drawn: `gradstats run EXPERIMENT --out {run.path}` makes them"
        )
    return drawn


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context(DETERMINISTIC):
        figure.savefig(text, format="svg", metadata=METADATA["svg"])
    return text.getvalue()
