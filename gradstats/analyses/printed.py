"""How results are shown: their repr, in text and in notebooks, and as rows of plain values."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from gradstats.analyses.numbers import UNRESOLVED, Triple, displayable_interval, format_estimate
from gradstats.stats.variance.quantities import NO_LIMITS, Limits
from gradstats.system.lazy_imports import pd

_MOST_ROWS = 20
_WIDTH = 100
#: The column of an estimate whose interval stands in the columns ``low`` and ``high``.
_ESTIMATES = ("estimate", "value")


class ReprMixin:
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
    names = list(dict.fromkeys(_named(list(map(str, frame)))))
    cells = {
        name: cells_of(frame, name, (limits or {}).get(name, NO_LIMITS)) for name in columns or names if name in names
    }
    return pd.DataFrame(
        {
            name: [one if isinstance(one, str) else format_estimate(*one) for one in of_column]
            for name, of_column in cells.items()
        }
    )


def _named(columns: Sequence[str]) -> Iterator[str]:
    """Yield the names of columns, and of each end of an interval that of its estimate."""
    estimate = next((name for name in _ESTIMATES if name in columns), "")
    for name in columns:
        base = name.removesuffix("_low").removesuffix("_high")
        if base != name and {f"{base}_low", f"{base}_high"} <= set(columns):
            yield base
        else:
            yield estimate if estimate and name in ("low", "high") else name


def cells_of(frame: pd.DataFrame, name: str, limits: Limits = NO_LIMITS) -> list[Triple] | list[str]:
    """Return the cells of a column as readers see them: numbers with the ends of their intervals, or words."""
    if name in frame and any(isinstance(cell, str | bool) for cell in frame[name]):
        return [UNRESOLVED if pd.isna(cell) else str(cell) for cell in frame[name]]
    return triples_of(frame, name, limits)


def triples_of(frame: pd.DataFrame, name: str, limits: Limits = NO_LIMITS) -> list[Triple]:
    """Return the numbers of a column as readers see them, with the ends of their intervals; NaN for what is not known.

    The ends stand in ``NAME_low`` and ``NAME_high``, or beside an ``estimate`` or ``value`` in ``low`` and ``high``.
    """
    ends = ["low", "high"] if name in _ESTIMATES and "low" in frame else [f"{name}_low", f"{name}_high"]
    numbers = frame.reindex(columns=[name, *ends]).to_numpy(dtype=float).tolist()
    return [displayable_interval(value, low, high, limits) for value, low, high in numbers]


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return one dictionary per row, column → value."""
    return [{str(column): value for column, value in row.items()} for row in frame.to_dict("records")]
