"""Writing a figure, with the table behind it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from gradstats.plots.frames import WithFrame, as_frame
from gradstats.plots.pgf import pgf_picture
from gradstats.system.files import atomic_path, write_csv
from gradstats.system.outputs import MARK, has_columns, is_marked, refuse_foreign

FORMATS = ("pdf", "svg", "png", "pgf")
# Dates and version strings would make two builds of one figure differ. The mark distinguishes a figure that may be
# drawn again from a file of the user's.
METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": MARK, "Producer": None},
    "png": {"Software": MARK},
    "svg": {"Date": None, "Creator": MARK},
}
DETERMINISTIC: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "gradstats",
    "savefig.bbox": None,
}


def save_figure(
    fig: Figure,
    path_stem: str | os.PathLike[str],
    formats: Sequence[str] = ("pdf", "png"),
    source: WithFrame | pd.DataFrame | None = None,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write a figure in several formats, byte-identical for identical input.

    Each file is written under a temporary name and renamed, so that no reader finds half a file. The page is
    exactly the figure's size: nothing is cropped.

    Args:
        fig: the figure.
        path_stem: path without a suffix, such as ``"figures/variance"``; missing folders are created.
        formats: any of ``"pdf"``, ``"svg"``, ``"png"``, ``"pgf"`` (a LaTeX picture in the document's fonts).
        source: the table behind the figure, a frame or a result with ``.to_frame()``, written next to it as
            CSV.
        overwrite: replace files of these names, whatever they contain.

    Returns:
        The paths written, the CSV last.

    Raises:
        ValueError: for a format that cannot be written byte-identically.
        FileExistsError: when a file lies there that is not an earlier figure of this program.
        OSError: when the folder cannot be written.

    Example:
        >>> import tempfile
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in save_figure(fig, f"{folder}/variance", formats=["pdf", "png"])]
        ['variance.pdf', 'variance.png']
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"formats holds {unknown[0]!r}: choose from {', '.join(FORMATS)}")
    stem = Path(path_stem)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"figures cannot be written to {stem.parent} ({error.strerror}): choose another folder"
        ) from error
    frame = None if source is None else as_frame(source)
    refuse_foreign_figure(stem, formats, None if frame is None else list(map(str, frame)), overwrite=overwrite)
    paths, table = figure_paths(stem, formats), stem.with_name(f"{stem.name}.csv")
    with mpl.rc_context(DETERMINISTIC):
        for name, path in zip(formats, paths, strict=True):
            with atomic_path(path) as partial:
                if name == "pgf":
                    partial.write_text(f"% {MARK}\n{pgf_picture(fig)}", encoding="utf-8", newline="\n")
                else:
                    fig.savefig(partial, format=name, metadata=METADATA[name])
    if frame is not None:
        paths.append(table)
        write_csv(table, frame)
    return paths


def refuse_foreign_figure(
    path_stem: str | os.PathLike[str],
    formats: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Refuse to draw a figure where files lie that are not an earlier one, before anything is drawn.

    Args:
        path_stem: as for :func:`save_figure`.
        formats: as for :func:`save_figure`.
        columns: of the table written next to it; None where none is.
        overwrite: as for :func:`save_figure`.

    Raises:
        FileExistsError: in that case.
    """
    stem = Path(path_stem)
    paths = figure_paths(stem, formats)
    for path in paths:
        refuse_foreign(path, "a figure", lambda there: there.is_file() and (overwrite or is_marked(there)))
    if columns is not None:
        needed = [] if overwrite or any(map(is_marked, paths)) else columns
        table = stem.with_name(f"{stem.name}.csv")
        refuse_foreign(table, "the table of a figure", lambda there: has_columns(there, needed))


def figure_paths(stem: Path, formats: Sequence[str]) -> list[Path]:
    """Return where a figure lies in each format."""
    return [stem.with_name(f"{stem.name}.{name}") for name in formats]
