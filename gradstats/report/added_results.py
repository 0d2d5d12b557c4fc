"""Results that a command adds to a finished run, or writes to a folder: a table, and its figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gradstats import plots
from gradstats.config.experiment import FiguresSection
from gradstats.report.figures import added_figure, styled
from gradstats.report.saved_frames import save_frame
from gradstats.report.saved_results import SavedResults, read_results, record_tables
from gradstats.system.outputs import refuse_links


def save_added(frame: pd.DataFrame, folder: Path, name: str, *, overwrite: bool = True) -> list[Path]:
    """Write a table to ``tables`` and its figure to ``figures`` of a folder; returns the paths.

    The figure of a run is drawn in the style that its experiment states, and the files are listed in its manifest, so
    that they are removed when the run is analysed again.

    Args:
        frame: the table, with its ``.attrs``.
        folder: a run directory, or any folder.
        name: of the files.
        overwrite: replace the same table with other settings or numbers.

    Raises:
        FileExistsError: when another file lies there, or a table that may not be replaced.
        ValueError: when the run directory contains symbolic links.
    """
    is_run = (folder / "measurement").is_dir()
    if is_run:
        refuse_links(folder)
    style = read_results(folder).figure_style if is_run else FiguresSection()
    paths = save_frame(frame, folder / "tables" / name, overwrite=overwrite)
    listed = added_figure(name, frame)
    with styled(style) as current_figure:
        listed.draw(SavedResults(folder, name, {}, {}, None, None, None), frame)
        paths += plots.save_figure(current_figure(), folder / "figures" / name, style.formats, source=frame)
    if is_run:
        record_tables(folder, paths)
    return paths
