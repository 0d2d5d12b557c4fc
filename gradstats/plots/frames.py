"""The checks that every plot makes of its frame, and the text drawn for an empty one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pandas as pd
from matplotlib.axes import Axes

from gradstats.plots.theme import REMARK, muted
from gradstats.stats.variance.quantities import Quantity


@runtime_checkable
class WithFrame(Protocol):
    """A result that has its numbers as a frame."""

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers, one row per mark drawn."""
        ...


def as_frame(table: WithFrame | pd.DataFrame) -> pd.DataFrame:
    """Return the frame of a result, or the frame itself."""
    return table if isinstance(table, pd.DataFrame) else table.to_frame()


def require_columns(frame: pd.DataFrame, columns: Sequence[str], remedy: str) -> None:
    """Refuse a frame without its columns.

    Raises:
        ValueError: naming those that are missing, and the remedy.
    """
    missing = sorted(set(columns) - set(frame.columns))
    if missing:
        raise ValueError(f"the table lacks the column(s) {', '.join(missing)}: {remedy}")


def quantity_to_draw(value: str, among: Sequence[Quantity]) -> Quantity:
    """Return the entry of a quantity in the table of quantities.

    Raises:
        ValueError: for a value that this figure does not draw.
    """
    for quantity in among:
        if quantity.name == value:
            return quantity
    names = ", ".join(quantity.name for quantity in among)
    raise ValueError(f"value={value!r} cannot be drawn: choose from {names}")


def draw_nothing(ax: Axes, why: str) -> None:
    """Write in the middle of empty axes why they are empty."""
    ax.annotate(
        why,
        (0.5, 0.5),
        xycoords="axes fraction",
        ha="center",
        va="center",
        color=muted(REMARK),
        style="italic",
    )
