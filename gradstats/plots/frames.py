"""What every plot asks of its frame, and what it draws when there is nothing in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes


def as_frame(table: Any) -> pd.DataFrame:
    """The frame of a result, or the frame itself."""
    return table if isinstance(table, pd.DataFrame) else table.to_frame()


def require_columns(frame: pd.DataFrame, columns: Sequence[str], remedy: str) -> None:
    """Refuse a frame without its columns.

    Raises:
        ValueError: naming those that are missing, and the remedy.
    """
    missing = sorted(set(columns) - set(frame.columns))
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: {remedy}")


def draw_nothing(ax: Axes, why: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    ax.annotate(
        why,
        (0.5, 0.5),
        xycoords="axes fraction",
        ha="center",
        va="center",
        color="0.45",
        style="italic",
    )
