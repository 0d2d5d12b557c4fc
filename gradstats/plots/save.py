"""Finished figures: how many prompts and completions they rest on, written at the top, and their files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.config.options import counted
from gradstats.plots.marks import WithFrame, as_frame
from gradstats.plots.names import CHARACTER, group_size_of, widening, wrapped
from gradstats.plots.style import pgf_picture
from gradstats.system.files import atomic_path, write_csv
from gradstats.system.lazy_imports import mpl, pd
from gradstats.system.outputs import MARK, OutputType, claim, csv_with, is_marked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches of a line of 7-point text, with the space that keeps it off the axes.
_LINE = 0.125
_SPACE = 0.08


def sample_size(n_prompts: int, n_completions: int, group_size: int | None = None) -> str:
    """Return prompts × completions in words; the total of completions where prompts have different numbers of them.

    Example:
        >>> sample_size(96, 768)
        '96 prompts × 8 completions'
        >>> sample_size(96, 768, group_size=4)
        '96 prompts × 8 completions, in groups of 4'
        >>> sample_size(1, 5), sample_size(3, 7)
        ('1 prompt × 5 completions', '3 prompts, 7 completions')
    """
    prompts, (each, over) = counted(n_prompts, "prompt"), divmod(n_completions, max(n_prompts, 1))
    if over or not n_prompts:
        return f"{prompts}, {counted(n_completions, 'completion')}"
    groups = "" if group_size is None or group_size == each else f", in groups of {group_size}"
    return f"{prompts} × {counted(each, 'completion')}{groups}"


def sample_size_of(frame: pd.DataFrame) -> str:
    """Return prompts × completions of a comparison's frame, or of each cell of a sweep; "" where it states neither.

    A group size is that of all rows.
    """
    if {"cell", "n_prompts", "n_completions"} <= set(frame):
        sizes = frame[["n_prompts", "n_completions"]].dropna().drop_duplicates().astype(int).to_numpy()
        texts = [sample_size(int(prompts), int(completions)) for prompts, completions in sizes]
        if not texts:
            return ""
        if len(set(texts)) == 1:
            return f"{texts[0]} in each cell"
        ranges = zip(sizes.min(0), sizes.max(0), strict=True)
        ends = [f"{low}–{high}" if low < high else f"{low}" for low, high in ranges]
        return f"{ends[0]} prompts and {ends[1]} completions in each cell"
    n_prompts, n_completions = frame.attrs.get("n_prompts"), frame.attrs.get("n_completions")
    if not n_prompts or not n_completions:
        return ""
    return sample_size(int(n_prompts), int(n_completions), group_size_of(frame))


def write_sample_size(figure: Figure, text: str) -> None:
    """Write how many prompts and completions a figure rests on at its top right, and make it higher by the lines.

    Args:
        figure: with all that is drawn; its layout must be constrained.
        text: such as :func:`sample_size` gives; an empty one, or one that is written already, changes nothing.
    """
    if not text or figure.get_suptitle():
        return
    font_size = mpl.rcParams["font.size"] * 7.0 / 8.0
    width, height = figure.get_size_inches()
    lines = wrapped(text, int(0.95 * width / CHARACTER * 8.0 / font_size / widening()))
    figure.set_size_inches(width, height + (_LINE * len(lines) + _SPACE) * font_size / 7.0)
    figure.suptitle("\n".join(lines), x=0.99, ha="right", fontsize=font_size)


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
    claim_figure(stem, formats, None if frame is None else list(map(str, frame)), overwrite=overwrite)
    paths, table = _figure_paths(stem, formats), stem.with_name(f"{stem.name}.csv")
    with mpl.rc_context(DETERMINISTIC), laid_out(fig):
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


@contextmanager
def laid_out(fig: Figure) -> Iterator[None]:
    """Lay a figure out as in print, once for all formats that are written inside; else each draws it twice."""
    engine = fig.get_layout_engine()
    if engine is None:
        yield
        return
    dpi, printed = fig.dpi, mpl.rcParams["savefig.dpi"]
    try:
        fig.dpi = dpi if printed == "figure" else printed
        engine.execute(fig)
        fig.dpi = dpi
        # Of no engine, matplotlib makes the one that rcParams ask for: each time that a file has been written as well.
        with mpl.rc_context({"figure.constrained_layout.use": False, "figure.autolayout": False}):
            fig.set_layout_engine(None)
            yield
    finally:
        fig.dpi = dpi
        fig.set_layout_engine(engine)


def claim_figure(
    path_stem: str | os.PathLike[str],
    formats: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Refuse to draw a figure where files lie that are not an earlier one, before anything is drawn."""
    stem = Path(path_stem)
    paths = _figure_paths(stem, formats)
    kind = OutputType("a figure", lambda path: path.is_file() and (overwrite or is_marked(path)))
    for path in paths:
        claim(path, kind)
    if columns is not None:
        needed = [] if overwrite or any(map(is_marked, paths)) else columns
        claim(stem.with_name(f"{stem.name}.csv"), csv_with(needed, "the table of a figure"))


def _figure_paths(stem: Path, formats: Sequence[str]) -> list[Path]:
    """Return where a figure lies in each format."""
    return [stem.with_name(f"{stem.name}.{name}") for name in formats]
