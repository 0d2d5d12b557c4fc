"""What the commands share that add a table and its figure to a run: the refusal before the work, and the writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradstats.cli import terminal

if TYPE_CHECKING:
    import pandas as pd


def refuse_foreign_result(folder: Path | None, name: str, columns: Sequence[str]) -> None:
    """Refuse to write over what lies in the folder asked for, before anything is computed."""
    if folder is not None:
        from gradstats.report.added_results import refuse_foreign_added

        refuse_foreign_added(folder, name, columns)


def save_result(
    frame: pd.DataFrame, folder: Path | None, name: str, overwrite: bool, uses_values: bool = False
) -> None:
    """Write a table and its figure to a run, or to the folder asked for; a bare measurement keeps neither."""
    if folder is not None:
        from gradstats.report.added_results import save_added

        for path in save_added(frame, folder, name, overwrite=overwrite, uses_values=uses_values):
            terminal.note(f"→ {path}")
