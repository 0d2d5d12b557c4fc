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
    from gradstats.report.saved_results import read_results
    from gradstats.runs.directory import is_run_directory, remove_listed_results
    from gradstats.system.outputs import refuse_links

    if not runs:
        raise ValueError("name at least one run directory: gradstats figures RUN")
    if out is not None and is_run_directory(out):
        raise FileExistsError(f"{out} is a run directory, whose files are not changed: choose another folder (--out)")
    results = [read_results(run) for run in runs]
    if len(results) == 1:
        if out is None:
            refuse_links(runs[0])
            remove_listed_results(runs[0], "figures")
        paths = draw_run(results[0], out or runs[0] / "figures", figure_style)
    else:
        paths = draw_overlay(
            results, out or Path("figures") / "+".join(run.resolve().name for run in runs), figure_style
        )
    for path in paths:
        terminal.console.print(str(path))


def report(run: Positional[Path], out: Path | None = None) -> None:
    """Write one self-contained HTML page on a run: verdict, α, variance table, figures, commands, manifest.

    Args:
        run: a run directory.
        out: the file; RUN/report.html by default.
    """
    from gradstats.report.page import write_report

    terminal.console.print(str(write_report(run, out)))
