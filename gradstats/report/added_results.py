"""Results that a command adds to a finished run, or writes to a folder: a table, and its figure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from gradstats import plots
from gradstats.config.experiment import FiguresSection
from gradstats.measurement.state_values import digest_of_state_values
from gradstats.plots.save import figure_paths, refuse_foreign_figure, write_sample_size
from gradstats.report.figures import added_figure, sample_size_of_run, styled
from gradstats.report.saved_results import (
    STATE_VALUES,
    SavedResults,
    frame_paths,
    make_room,
    read_results,
    record_tables,
    refuse_foreign_frame,
    save_frame,
)
from gradstats.system.files import csv_text


def refuse_foreign_added(folder: Path, name: str, columns: Sequence[str]) -> None:
    """Refuse to add a result to a folder, before it is computed."""
    refuse_foreign_frame(folder / "tables" / name, columns)
    style = read_results(folder).figure_style if _is_run(folder) else FiguresSection()
    refuse_foreign_figure(folder / "figures" / name, style.formats, columns)
    if _is_run(folder) and not (folder / "manifest.json").exists():
        raise ValueError(
            f"the analysis of {folder} is not finished: repeat `gradstats run`, or choose a folder (--out)"
        )


def save_added(
    frame: pd.DataFrame, folder: Path, name: str, *, overwrite: bool = True, uses_values: bool = False
) -> list[Path]:
    """Write a table to ``tables`` and its figure to ``figures`` of a folder; returns the paths.

    The figure of a run is drawn in the style that its experiment states, and the files are listed in its manifest, so
    that they are removed when the run has other completions, rewards or, where the table was made from them, other
    state values. They are listed before they are written: what a killed process leaves belongs to the run all the same.
    The caller holds the run's lock.
    """
    run = read_results(folder) if _is_run(folder) else SavedResults(folder, name, {}, {}, None, None, None)
    style = run.figure_style
    if uses_values and (values := digest_of_state_values(folder / "values")) is not None:
        frame.attrs[STATE_VALUES] = values
    table, figure = folder / "tables" / name, folder / "figures" / name
    if _is_run(folder):
        make_room(frame, table, overwrite=overwrite)
        expected = [*frame_paths(table), *figure_paths(figure, style.formats), figure.with_name(f"{name}.csv")]
        checksum = hashlib.sha256(csv_text(frame).encode()).hexdigest()
        csv = [path.relative_to(folder).as_posix() for path in expected if path.suffix == ".csv"]
        record_tables(folder, expected, dict.fromkeys(csv, checksum))
    paths = save_frame(frame, table, overwrite=overwrite)
    listed = added_figure(name, frame)
    if listed is None:
        return paths
    with styled(style) as current_figure:
        listed.draw(run, frame)
        write_sample_size(current_figure(), sample_size_of_run(run, frame))
        return paths + plots.save_figure(current_figure(), figure, style.formats, source=frame)


def _is_run(folder: Path) -> bool:
    return (folder / "measurement").is_dir()
