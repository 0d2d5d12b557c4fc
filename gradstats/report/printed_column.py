"""An entry of the index of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradstats.stats.variance.quantities import Quantity, filled_in


@dataclass(frozen=True)
class PrintedColumn:
    """One column, or one row where a table has a row for each quantity.

    Attributes:
        name: as it is saved.
        meaning: in words.
        file: that defines it, from the folder of the package.
    """

    name: str
    meaning: str
    file: str


def of(file: str, **meanings: str) -> tuple[PrintedColumn, ...]:
    """Return columns that one file defines: name → meaning."""
    return tuple(PrintedColumn(name, meaning, file) for name, meaning in meanings.items())


def each(folder: str, headings: Mapping[str, str]) -> tuple[PrintedColumn, ...]:
    """Return quantities that have a file of their name."""
    return tuple(PrintedColumn(name, heading, f"{folder}/{name}.py") for name, heading in headings.items())


def headings(quantities: tuple[Quantity, ...]) -> dict[str, str]:
    """Return the headings of quantities by name."""
    return {one.name: filled_in(one.heading, {}) for one in quantities}
