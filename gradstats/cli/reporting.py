"""The commands that draw figures and write reports from a run's saved numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gradstats.cli import terminal
from gradstats.cli.options import OptionsOf, Positional, one_or_more
from gradstats.config.sections import FiguresSection


def figures(
    runs: Positional[Annotated[tuple[Path, ...], one_or_more("RUN")]],
    figure_style: OptionsOf[FiguresSection],
    out: Path | None = None,
) -> None:
    """Redraw the figures of a run, or draw several runs on the same axes, from saved numbers and without the model.

    Args:
        runs: run directories; several are drawn on the same axes, labelled, with a warning where their settings differ.
        figure_style: venue, width, theme and formats.
        out: the folder; by default that of the run, or figures/NAME+NAME for several.
    """
    from gradstats.report.figures import draw_run
    from gradstats.report.overlay import draw_overlay
    from gradstats.report.run_folder import refuse_inside_run, writing_into
    from gradstats.report.saved_results import read_results

    if not runs:
        raise ValueError("name at least one run directory: gradstats figures RUN")
    if len(runs) == 1 and out is None:
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
    from gradstats.report.run_folder import writing_into
    from gradstats.report.saved_results import read_results, record_tables
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


def report(run: Positional[Path], out: Path | None = None) -> None:
    """Write one self-contained HTML page on a run: verdict, α, variance table, figures, commands, manifest.

    Args:
        run: a run directory.
        out: the file; RUN/report.html by default.
    """
    from gradstats.report.page import write_report

    terminal.console.print(str(write_report(run, out)))
