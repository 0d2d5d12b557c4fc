"""The commands that draw figures, write tables and report from a run's saved numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gradstats.cli import terminal
from gradstats.cli.options import Advanced, Positional, SettingWords, Trust, code_of_run, described_by, one_or_more
from gradstats.config.options import ColumnWidth, FigureFormat, Theme, Venue, read_display_names
from gradstats.config.sections import FiguresSection

if TYPE_CHECKING:
    from gradstats.report.latex import Layout
    from gradstats.report.saved_results import SavedResults


def _find_own_questions(runs: Sequence[Path], trust: bool) -> None:
    """Import the user's own questions that runs were asked, with permission; without it say which are not shown."""
    from gradstats.analyses import registry
    from gradstats.report.saved_results import answer_stems

    for run in runs:
        for stem, label in answer_stems(run).items():
            if trust and ":" in label:
                with code_of_run(run, trust):
                    registry.get(label)
            elif ":" in label and registry.of_answer(label) is None:
                terminal.note(f"{stem.name} was asked as {label}: read that code, then add --trust to show the answer")


def export(
    runs: Positional[Annotated[tuple[Path, ...], one_or_more("RUN")]],
    only: Literal["figures", "tables"] | None = None,
    venue: Annotated[Venue | None, described_by(FiguresSection, "venue", "that of the experiment")] = None,
    column: Annotated[ColumnWidth | None, described_by(FiguresSection, "column", "that of the experiment")] = None,
    theme: Advanced[Annotated[Theme | None, described_by(FiguresSection, "theme", "that of the experiment")]] = None,
    formats: Annotated[
        tuple[FigureFormat, ...], described_by(FiguresSection, "formats", "those of the experiment")
    ] = (),
    labels: Annotated[SettingWords, described_by(FiguresSection, "labels", "those of the experiment")] = (),
    estimators: Annotated[tuple[str, ...], described_by(FiguresSection, "estimators", "those of the experiment")] = (),
    order: Advanced[
        Annotated[
            Literal["value", "listed"] | None,
            described_by(FiguresSection, "order", "value in figures, listed in tables"),
        ]
    ] = None,
    columns: tuple[str, ...] = (),
    siunitx: Advanced[bool] = False,
    out: Path | None = None,
    trust: Trust = False,
) -> None:
    """Draw the figures and write the LaTeX tables of a run, or of several together, from saved numbers.

    Args:
        runs: run directories; several share axes and tables, labelled, with a warning where their settings differ. Or
            the folder of a sweep, or of a monitored training run, which is drawn against what varies.
        only: figures or tables alone.
        columns: columns of tables, by their names in the CSV or by their headings, where tables have them; by default
            those for which there is room.
        siunitx: align the numbers of tables at the decimal point, with the LaTeX package siunitx.
        out: the folder; by default figures and tables lie in that of the run, and several runs in NAME+NAME.
    """
    from gradstats.report.latex import Layout

    if not runs:
        raise ValueError("name at least one run directory: gradstats export RUN")
    together = None if len(runs) == 1 else "+".join(run.resolve().name for run in runs)
    given = {
        "venue": venue,
        "theme": theme,
        "formats": list(formats),
        "estimators": list(estimators),
        "order": order,
    }
    _find_own_questions(runs, trust)
    results = _results_of(runs)
    own = next((one.figure_style for one in results.values()), FiguresSection())
    chosen = {name: value for name, value in given.items() if value}
    chosen["labels"] = own.labels | read_display_names(labels)
    # Without a venue both are the experiment's; a width of its own belongs to the venue that it names.
    chosen["column"] = column or (own.column if venue is None else None)
    style = FiguresSection(**(own.model_dump() | chosen))
    kinds = ("figures", "tables") if only is None else (only,)
    folders = {kind: out if out is None or only else out / kind for kind in kinds}
    if together is not None:
        folders = {kind: folder or Path(kind) / together for kind, folder in folders.items()}
    tables = None
    if "tables" in kinds and (results or only == "tables"):
        layout = Layout(style.venue, style.column, columns, siunitx)
        tables = _tables(runs, results, style, layout, order, folders["tables"])  # refused before anything is drawn
    if "figures" in kinds:
        _show_written(_draw(runs, list(results.values()), style, folders["figures"]), "figures")
    if tables is not None:
        _write_tables(*tables)
    first = next(iter(results.values()), None)
    if out is not None and first is not None and runs == (first.path,):
        from gradstats.report.added_results import remove_stale

        remove_stale(first, style, {kind: folder for kind, folder in folders.items() if folder is not None})


def _show_written(paths: list[Path], what: str) -> None:
    """Print how many figures or tables were written, in which formats, and where."""
    for folder in dict.fromkeys(path.parent for path in paths):
        files = [path for path in paths if path.parent == folder]
        formats = ", ".join(dict.fromkeys(path.suffix.removeprefix(".") for path in files))
        count = len({path.stem for path in files})
        terminal.show([f"{folder}: {count} {what if count > 1 else what.removesuffix('s')} ({formats})"])


def _draw(
    runs: tuple[Path, ...], results: list[SavedResults], style: FiguresSection, folder: Path | None
) -> list[Path]:
    """Draw the figures of a run or a sweep, or those of several runs on the same axes."""
    from gradstats.report.figures import draw_overlay, draw_run
    from gradstats.report.saved_results import refuse_inside_run, writing_into
    from gradstats.report.sweeps import is_sweep

    if len(runs) == 1 and is_sweep(runs[0]):
        return _redraw_sweep(runs[0], folder, style)
    if folder is None:
        return _redraw(runs[0], style)
    refuse_inside_run(folder)
    with writing_into(folder):
        return draw_run(results[0], folder, style) if len(results) == 1 else draw_overlay(results, folder, style)


def _redraw(run: Path, figure_style: FiguresSection) -> list[Path]:
    """Draw the figures of a run in its own folder, in place of those that its manifest lists."""
    from gradstats.report.added_results import remove_stale
    from gradstats.report.figures import claim_figures, draw_run
    from gradstats.report.saved_results import read_results, writing_into
    from gradstats.system.outputs import refuse_links

    with writing_into(run):
        refuse_links(run)  # also a copy of a run's results, which is not locked
        results = read_results(run)
        claim_figures(results, run / "figures", figure_style)
        remove_stale(results, figure_style)
        return draw_run(results, run / "figures", figure_style)


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
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None,
    trust: Trust = False,
) -> None:
    """Write one self-contained HTML page on a run: α, variance table, figures, completions, commands, manifest.

    Args:
        runs: a run directory; with --gallery several, or folders of sweeps, whose finished runs are listed.
        gallery: write a page that compares the runs: α and the ratios of all, with links to the page of each.
        out: the file; RUN/report.html by default, gallery.html for several runs.
    """
    if out is not None and out.suffix not in ("", ".htm", ".html"):
        raise ValueError(f"--out {out}: a report is HTML, so name a file .html; gradstats export writes other formats")
    from gradstats.report.gallery import write_gallery
    from gradstats.report.page import write_report
    from gradstats.report.sweeps import is_sweep, read_sweep_list

    if gallery:
        terminal.console.print(str(write_gallery(runs, out or Path("gallery.html"))))
        return
    if len(runs) != 1:
        raise ValueError("name one run directory, or compare several on one page: gradstats report --gallery RUN RUN …")
    run = runs[0]
    _find_own_questions(runs, trust)
    if is_sweep(run):
        cell = next(reversed(read_sweep_list(run).settings), "CELL")
        raise ValueError(
            f"{run} is the folder of a sweep: name one of its runs, as in gradstats report {run / cell}, compare all "
            f"with gradstats report --gallery {run}, or draw them with gradstats export {run}"
        )
    terminal.console.print(str(write_report(run, out)))


def _tables(
    runs: tuple[Path, ...],
    results: Mapping[str, SavedResults],
    style: FiguresSection,
    layout: Layout,
    order: str | None,
    out: Path | None,
) -> tuple[Path, dict[Path, str], list[str]]:
    """Return the folder and files of every table of a run, or of several, and what to say of columns left out."""
    from gradstats.report.figures import refuse_unknown_estimators
    from gradstats.report.run_tables import latex_of, layout_for, left_out, run_tables, several_tables
    from gradstats.report.saved_results import refuse_inside_run, writing_into
    from gradstats.report.sweeps import is_sweep

    first, *others = runs
    if not results:
        raise FileNotFoundError(f"no cell of {first} has results that can be tabulated yet")
    if out is not None:
        refuse_inside_run(out)
    refuse_unknown_estimators(list(results.values()), style)
    by_value = order == "value"
    if others or is_sweep(first):
        found = several_tables(dict(results), style, by_value=by_value)
    else:
        (run,) = results.values()
        found = run_tables(run.answers, run.name, style, by_value=by_value)
    narrow = [name for name, table in found.items() if left_out(table, layout_for(table, layout))]
    said = f"{layout.place} has no room for every column of {', '.join(narrow)}: --columns"
    folder = out or first / "tables"
    with writing_into(folder):
        texts = latex_of(found, folder, layout)
    return folder, texts, textwrap.wrap(said, 80) if narrow and not layout.columns else []


def _write_tables(folder: Path, texts: Mapping[Path, str], said: list[str]) -> None:
    """Write tables, and say where."""
    from gradstats.report.saved_results import writing_into
    from gradstats.system.outputs import TABLE, write_marked

    with writing_into(folder):
        for path, text in texts.items():
            write_marked(path, text, TABLE)
    _show_written(list(texts), "tables")
    terminal.show(said)


def _results_of(runs: tuple[Path, ...]) -> dict[str, SavedResults]:
    """Return name → results of run directories; of the folder of a sweep, of each cell that has any."""
    from gradstats.report.run_tables import run_names
    from gradstats.report.saved_results import read_results
    from gradstats.report.sweeps import is_sweep, read_sweep

    if len(runs) == 1 and is_sweep(runs[0]):
        return read_sweep(runs[0]).results
    results = [read_results(run) for run in runs]
    return dict(zip(run_names(results), results, strict=True))
