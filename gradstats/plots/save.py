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

FORMATS = ("pdf", "svg", "png", "pgf")
# Dates and version strings would make two builds of one figure differ.
METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
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
) -> list[Path]:
    """Write a figure in several formats, byte-identical for identical input.

    Each file is written under a temporary name and renamed, so that no reader finds half a file. The page is
    exactly the figure's size: nothing is cropped.

    Args:
        fig: the figure.
        path_stem: path without a suffix, such as ``"figures/variance"``; folders are made.
        formats: any of ``"pdf"``, ``"svg"``, ``"png"``, ``"pgf"`` (a LaTeX picture in the document's fonts).
        source: the table behind the figure, a frame or a result with ``.to_frame()``, written beside it as
            CSV.

    Returns:
        The paths written, the CSV last.

    Raises:
        ValueError: for a format that cannot be written byte-identically.
        OSError: when the folder cannot be written.
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
    paths = []
    with mpl.rc_context(DETERMINISTIC):
        for name in formats:
            paths.append(stem.with_name(f"{stem.name}.{name}"))
            with atomic_path(paths[-1]) as partial:
                if name == "pgf":
                    partial.write_text(pgf_picture(fig), encoding="utf-8", newline="\n")
                else:
                    fig.savefig(partial, format=name, metadata=METADATA[name])
    if source is not None:
        frame = as_frame(source)
        paths.append(stem.with_name(f"{stem.name}.csv"))
        write_csv(paths[-1], frame)
    return paths
