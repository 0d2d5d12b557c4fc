"""How results are shown: their repr, in text and in notebooks, and as rows of plain values."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradstats.analyses.numbers import UNRESOLVED, number_alone, number_with_interval
from gradstats.stats.variance.quantities import NO_LIMITS, Limits
from gradstats.system.late import pd

_MOST_ROWS = 20
_WIDTH = 100
#: The column of an estimate whose interval stands in the columns ``low`` and ``high``.
_ESTIMATES = ("estimate", "value")


class Printed:
    """A result that prints as a table of its main columns, with intervals, and its sentences.

    Python's prompt and ``print`` show text, notebooks a table. All columns and rows are those of ``to_frame()``.
    """

    #: The columns of ``to_frame()`` that are printed; all by default.
    printed_columns: ClassVar[tuple[str, ...]] = ()
    #: Column → the least and the greatest value that are possible, where there are such.
    printed_limits: ClassVar[Mapping[str, Limits]] = {}

    def __repr__(self) -> str:
        """Return the table as text."""
        frame, left_out = self._printed_table()
        parts = [frame.to_string(index=False, line_width=_WIDTH), *left_out, *printed_sentences(self)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        frame, left_out = self._printed_table()
        sentences = [*left_out, *printed_sentences(self)]
        return frame.to_html(index=False, border=0) + "".join(f"<p>{html.escape(one)}</p>" for one in sentences)

    def _printed_table(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the main columns as text, and what is left out."""
        frame = self.to_frame()  # pyright: ignore[reportAttributeAccessIssue]
        shown = estimates_with_intervals(frame.head(_MOST_ROWS), self.printed_columns, self.printed_limits)
        more = len(frame) - _MOST_ROWS
        return shown, [f"… and {more} further rows: see to_frame()"] if more > 0 else []


def printed_sentences(result: object) -> list[str]:
    """Return what a result says in words: its ``sentences()``, ``sentence()`` or ``verdict()``, and its notes."""
    said: list[str] = []
    if hasattr(result, "sentences"):
        said += result.sentences()  # pyright: ignore[reportAttributeAccessIssue]
    elif hasattr(result, "sentence"):
        said.append(result.sentence())  # pyright: ignore[reportAttributeAccessIssue]
    elif hasattr(result, "verdict"):
        said.append(result.verdict())  # pyright: ignore[reportAttributeAccessIssue]
    said += [f"note: {one}" for one in getattr(result, "notes", ())]
    return said


def estimates_with_intervals(
    frame: pd.DataFrame, columns: Sequence[str] = (), limits: Mapping[str, Limits] | None = None
) -> pd.DataFrame:
    """Write estimates with their intervals into one cell each, ``"0.87 [0.81, 0.93]"``, and everything else as text.

    Args:
        frame: the numbers, as results give them.
        columns: the columns to write, in their order; all by default.
        limits: column → the least and the greatest value that are possible.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"estimator": ["grpo"], "ratio": [0.8712], "ratio_low": [0.81], "ratio_high": [0.93]})
        >>> print(estimates_with_intervals(frame).to_string(index=False))
        estimator                ratio
             grpo 0.871 [0.810, 0.930]
    """
    rows: list[dict[str, Any]] = frame.to_dict("records")
    written: dict[str, list[str]] = {}
    for name, (estimate, low, high) in _names(list(map(str, frame))).items():
        if columns and name not in columns:
            continue
        written[name] = [
            number_with_interval(
                row[estimate] if estimate else math.nan, row[low], row[high], limits=(limits or {}).get(name, NO_LIMITS)
            )
            if low
            else _cell(row[estimate])
            for row in rows
        ]
    return pd.DataFrame(written, columns=[name for name in (columns or written) if name in written])


def _names(columns: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Name → the columns of estimate and ends; "" for one that does not exist."""
    found: dict[str, tuple[str, str, str]] = {}
    plain = next((name for name in _ESTIMATES if name in columns), "")
    for name in columns:
        if name in ("low", "high") and plain and {"low", "high"} <= set(columns):
            continue
        base = name.removesuffix("_low").removesuffix("_high")
        if base != name and {f"{base}_low", f"{base}_high"} <= set(columns):
            found.setdefault(base, (base if base in columns else "", f"{base}_low", f"{base}_high"))
        elif name == plain and {"low", "high"} <= set(columns):
            found[name] = (name, "low", "high")
        elif {f"{name}_low", f"{name}_high"} <= set(columns):
            found[name] = (name, f"{name}_low", f"{name}_high")
        else:
            found[name] = (name, "", "")
    return found


def _cell(value: object) -> str:
    if value is None:
        return UNRESOLVED
    return number_alone(value) if isinstance(value, float) else str(value)


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return one dictionary per row, column → value."""
    return [{str(column): value for column, value in row.items()} for row in frame.to_dict("records")]
