"""Where the results of a command on a measurement may be written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradstats.report.run_folder import enclosing_run, is_run_directory, refuse_inside_run, writing_into
from gradstats.system.lock import only_writer
from gradstats.system.outputs import has_columns, refuse_foreign, refuse_links


def refuse_foreign_table(out: Path | None, columns: Sequence[str]) -> None:
    """Refuse to write a table where a file without its columns lies, or a file of a run.

    Raises:
        FileExistsError: in that case.
    """
    if out is not None:
        refuse_foreign(out, f"a table with the columns {', '.join(columns)}", lambda there: has_columns(there, columns))
        refuse_inside_run(out)


@contextmanager
def folder_of_results(source: Path, out: Path | None, *, partial: bool = False) -> Iterator[Path | None]:
    """Yield the folder that a command adds its results to, locked where it is a run; None for a bare measurement.

    Args:
        source: the measurement folder or run directory that the command reads.
        out: the folder that the user asked for; the run directory by default.
        partial: whether the results are those of an incomplete run, which does not keep them.

    Raises:
        ValueError: when it is a run directory that contains symbolic links, or any run directory and ``partial`` is
            True.
        FileExistsError: when it is another run than the one that is read.
        NotADirectoryError: when it is a file or a device.
        LockedError: when another process works on the run.
    """
    folder = source if out is None and (source / "measurement").is_dir() else out
    if folder is None:
        yield None
        return
    if os.path.lexists(folder) and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: choose another one (--out)")
    is_run = (folder / "measurement").is_dir() or is_run_directory(folder)
    if partial and (is_run or enclosing_run(folder) is not None):
        raise ValueError(
            f"with --partial nothing is written into the run {folder}, which would hold the numbers as those of "
            "all its shards: choose another folder (--out)"
        )
    if not is_run:
        refuse_inside_run(folder)
        with writing_into(folder):
            yield folder
        return
    if source.resolve() not in (folder.resolve(), (folder / "measurement").resolve()):
        raise FileExistsError(f"{folder} is another run than {source}: choose another folder (--out)")
    with only_writer(folder):
        refuse_links(folder)
        yield folder
