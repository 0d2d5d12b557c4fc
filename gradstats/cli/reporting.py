"""The commands that draw figures and write reports from a run's saved numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gradstats.cli import terminal
from gradstats.cli.options import OptionsOf, Positional, SettingWords, Trust, described_by, one_or_more
from gradstats.cli.statistics import code_of_run
from gradstats.config.options import read_display_names
from gradstats.config.sections import FiguresSection

if TYPE_CHECKING:
    from gradstats.report.saved_results import SavedResults


def find_own_questions(runs: Sequence[Path], trust: bool) -> None:
    """Import the user's own questions that runs were asked, with permission; without it say which are not shown."""
    from gradstats.analyses import registry
    from gradstats.report.saved_results import read_added

    for run in runs:
        for name, frame in read_added(run).items():
            label = str(frame.attrs.get(registry.QUESTION, ""))
            if trust and label:
                with code_of_run(run, trust):
                    registry.get(label)
            elif label and registry.analysis_of_file(name, frame.attrs) is None:
                terminal.note(f"{name} was asked as {label}: read that code, then add --trust to show the answer")


def figures(
    runs: Positional[Annotated[tuple[Path, ...], one_or_more("RUN")]],
    figure_style: OptionsOf[FiguresSection],
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Redraw the figures of a run, or draw several runs on the same axes, from saved numbers and without the model.

    Args:
        runs: run directories; several are drawn on the same axes, labelled, with a warning where their settings differ.
            Or the folder of a sweep, or of a monitored training run, which is drawn against what varies.
        figure_style: venue, width, theme and formats.
        out: the folder; by default that of the run, or figures/NAME+NAME for several.
    """
    from gradstats.report.figures import draw_overlay, draw_run
    from gradstats.report.saved_results import read_results, refuse_inside_run, writing_into
    from gradstats.report.sweeps import is_sweep

    if not runs:
        raise ValueError("name at least one run directory: gradstats figures RUN")
    find_own_questions(runs, trust)
    if len(runs) == 1 and is_sweep(runs[0]):
        paths = _redraw_sweep(runs[0], out, figure_style)
    elif len(runs) == 1 and out is None:
        paths = _redraw(runs[0], figure_style)
    else:
        folder = out or Path("figures") / "+".join(run.resolve().name for run in runs)
        refuse_inside_run(folder)
        results = [read_results(run) for run in runs]
        with writing_into(folder):
            if len(results) == 1:
                paths = draw_run(results[0], folder, figure_style)
            else:
                paths = draw_overlay(results, folder, figure_style)
    for path in paths:
        terminal.console.print(str(path))


def _redraw(run: Path, figure_style: FiguresSection) -> list[Path]:
    """Draw the figures of a run in its own folder, in place of those that its manifest lists."""
    from gradstats.report.figures import draw_run, refuse_foreign_figures
    from gradstats.report.saved_results import read_results, record_tables, writing_into
    from gradstats.runs.directory import remove_listed_results
    from gradstats.system.outputs import refuse_links

    with writing_into(run):
        refuse_links(run)  # also a copy of a run's results, which is not locked
        results = read_results(run)
        refuse_foreign_figures(results, run / "figures", figure_style)
        remove_listed_results(run, "figures")
        paths = draw_run(results, run / "figures", figure_style)
        record_tables(run, paths)
    return paths


def _redraw_sweep(folder: Path, out: Path | None, figure_style: FiguresSection) -> list[Path]:
    """Join the results of a sweep again and draw them, in its own folder or in another."""
    from gradstats.report.saved_results import refuse_inside_run
    from gradstats.report.sweeps import draw_sweep, read_sweep, write_sweep_results
    from gradstats.system.lock import only_writer

    result = read_sweep(folder)
    if out is not None:
        refuse_inside_run(out)
        paths = draw_sweep(result.to_frame(), result.varied, out, figure_style)
    else:
        with only_writer(folder):
            paths = write_sweep_results(result, figure_style)
    if not paths:
        raise FileNotFoundError(f"no cell of {folder} has results that can be drawn yet")
    return paths


def report(
    runs: Positional[Annotated[tuple[Path, ...], one_or_more("RUN")]],
    gallery: bool = False,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write one self-contained HTML page on a run: α, variance table, figures, completions, commands, manifest.

    Args:
        runs: a run directory; with --gallery several, or folders of sweeps, whose finished runs are listed.
        gallery: write a page that compares the runs: α and the ratios of all, with links to the page of each.
        out: the file; RUN/report.html by default, gallery.html for several runs.
    """
    from gradstats.report.gallery import write_gallery
    from gradstats.report.page import write_report
    from gradstats.report.sweeps import is_sweep, read_sweep_list

    if gallery:
        terminal.console.print(str(write_gallery(runs, out or Path("gallery.html"))))
        return
    if len(runs) != 1:
        raise ValueError("name one run directory, or compare several on one page: gradstats report --gallery RUN RUN …")
    run = runs[0]
    find_own_questions(runs, trust)
    if is_sweep(run):
        cell = next(reversed(read_sweep_list(run).settings), "CELL")
        raise ValueError(
            f"{run} is the folder of a sweep: name one of its runs, as in gradstats report {run / cell}, compare all "
            f"with gradstats report --gallery {run}, or draw them with gradstats figures {run}"
        )
    terminal.console.print(str(write_report(run, out)))


def tables(
    runs: Positional[Annotated[tuple[Path, ...], one_or_more("RUN")]],
    venue: Annotated[str | None, described_by(FiguresSection, "venue", "that of the experiment")] = None,
    column: Annotated[str | None, described_by(FiguresSection, "column", "that of the experiment")] = None,
    columns: tuple[str, ...] = (),
    siunitx: bool = False,
    labels: Annotated[SettingWords, described_by(FiguresSection, "labels", "those of the experiment")] = (),
    estimators: Annotated[tuple[str, ...], described_by(FiguresSection, "estimators", "those of its figures")] = (),
    order: Literal["value", "listed"] = "listed",
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write every table of a run as LaTeX at a venue's width, or of several α and variance, from saved numbers.

    Args:
        runs: a run directory; or several, or the folder of a sweep, whose runs are the rows of both tables.
        columns: columns to show, by their names in the CSV or by their headings, in the tables that have them; by
            default those for which there is room.
        siunitx: align numbers at the decimal point, with the LaTeX package siunitx.
        order: rows of the comparison as they are listed, or by matched ratio.
        out: the folder; RUN/tables by default, and tables/NAME+NAME for several runs.
    """
    from gradstats.report.figures import refuse_unknown_estimators
    from gradstats.report.latex import Layout
    from gradstats.report.run_tables import layout_for, left_out, run_tables, several_tables, write_run_tables
    from gradstats.report.saved_results import record_tables, refuse_inside_run, writing_into
    from gradstats.report.sweeps import is_sweep

    if not runs:
        raise ValueError("name at least one run directory: gradstats tables RUN")
    find_own_questions(runs, trust)
    alone = len(runs) == 1
    folder = out or (runs[0] / "tables" if alone else Path("tables") / "+".join(run.resolve().name for run in runs))
    if out is not None or not alone:
        refuse_inside_run(folder)
    results = _named_results(runs)
    style = next(iter(results.values())).figure_style
    # Without a venue both are the experiment's; a width of its own belongs to the venue that it names.
    layout = Layout(venue or style.venue, column or (style.column if venue is None else None), columns, siunitx)
    chosen = {"labels": style.labels | read_display_names(labels), "estimators": list(estimators) or style.estimators}
    style = style.model_copy(update=chosen)
    refuse_unknown_estimators(list(results.values()), style)
    by_value = order == "value"
    several = not alone or is_sweep(runs[0])
    if several:
        found = several_tables(results, style, by_value=by_value)
    else:
        found = run_tables(next(iter(results.values())), style, by_value=by_value)
    with writing_into(folder):
        paths = write_run_tables(found, folder, layout)
        if out is None and not several:
            record_tables(runs[0], paths)
    for path, (name, table) in zip(paths, found.items(), strict=True):
        terminal.console.print(str(path))
        narrow = left_out(table, layout_for(table, layout))
        if narrow and not layout.columns:
            terminal.note(f"{name}: {layout.place} has no room for {', '.join(narrow)}; --columns chooses")


def _named_results(runs: tuple[Path, ...]) -> dict[str, SavedResults]:
    """Return name → results of run directories; of the folder of a sweep, of each cell that has any."""
    from gradstats.report.run_tables import run_names
    from gradstats.report.saved_results import read_results
    from gradstats.report.sweeps import is_sweep, read_sweep

    if len(runs) == 1 and is_sweep(runs[0]):
        cells = read_sweep(runs[0]).results
        if not cells:
            raise FileNotFoundError(f"no cell of {runs[0]} has results that can be tabulated yet")
        return cells
    results = [read_results(run) for run in runs]
    return dict(zip(run_names(results), results, strict=True))
