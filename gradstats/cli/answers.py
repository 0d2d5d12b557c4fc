"""The first screen of a command: the answer in a few lines of 80 columns, and where the rest is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gradstats.analyses.numbers import UNRESOLVED
from gradstats.report.analysis_tables import shortened
from gradstats.report.verdict import NO_BREAK, NoiseRow, Verdict, noise_of, of_first_size, what_is_open

if TYPE_CHECKING:
    from gradstats.answers import Answer
    from gradstats.report.analysis_tables import ShortRow, ShortTable

#: Columns and lines of a first screen.
WIDTH, LINES = 80, 25
_INDENT = "  "
_GAP = "   "  # between columns
_TOPIC = 7  # columns of the topics of verdicts
# Columns of names in a table, in one with room for one column alone, and in that of relative noise beside a bias.
_LONGEST_NAME, _SHORTENED_NAMES, _LONGEST_BESIDE_BIAS = 36, (34, 32), 28
_BIAS = "bias"
# The axis does not reach beyond these, whatever the intervals.
_FARTHEST = 8.0
# Marks on the axis, of which the first that fit the span are drawn.
_TICKS = ((0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 0.7, 1.0, 1.4, 2.0), (0.8, 0.9, 1.0, 1.1, 1.25))
_FINE_TICKS = ((0.95, 1.0, 1.05), (0.98, 1.0, 1.02), (0.99, 1.0, 1.01))
# Lines around the rows of the table of relative noise: two blank ones, and its heading.
_AROUND = 3
# Lines around the rows of the table of a question: a blank one above and below, its heading, one on rows that are left
# out, and one on what was written.
_AROUND_TABLE = 5
# Letters of a name that is not shortened.
_WHOLE_NAME = 1000


def first_screen(
    headline: str, verdicts: Sequence[Verdict], comparison: Answer | None = None, closing: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the answer.

    Args:
        headline: what was measured.
        verdicts: one line or two for each.
        comparison: of the estimators whose relative noise is drawn below the verdicts.
        closing: lines on where the rest is.
    """
    block = [line for verdict in verdicts for line in _verdict(verdict)]
    lines = [*_folded(headline, ""), *([""] if block else []), *block]
    if comparison is not None:
        room = LINES - len(lines) - len(closing) - _AROUND
        table = noise_table(comparison, most=room)
        # Below the rows may stand what is open.
        lines += ["", *noise_table(comparison, most=room - max(len(table) - 1 - room, 0))]
    return [*lines, *([""] if closing else []), *closing]


def _verdict(one: Verdict) -> list[str]:
    return _folded(one.text, f"{_INDENT}{one.topic:<{_TOPIC}}")


def _folded(text: str, before: str) -> list[str]:
    """Return a text behind a few letters, in lines of the screen's width."""
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=before, subsequent_indent=" " * (len(before) or len(_INDENT)),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(NO_BREAK, " ") for line in lines]


def answer_screen(answer: str, table: ShortTable | None = None, closing: Sequence[str] = ()) -> list[str]:
    """Return the lines of the answer to a question: what it says, and a short table.

    Args:
        answer: a sentence or two; each of its lines is folded by itself.
        table: what does not fit is left out, the last rows and columns first.
        closing: lines on where the rest is.
    """
    lines = [line for text in answer.splitlines() for line in _folded(text, "")]
    if table is not None and table.headings and table.rows:
        lines += ["", *_table(table, LINES - len(lines) - len(closing) - _AROUND_TABLE)]
    return [*lines, *([""] if closing else []), *closing]


def log_screen(
    headline: str, verdicts: Sequence[Verdict], table: ShortTable, closing: Sequence[str], needed: int
) -> list[str]:
    """Return the lines of the answers to a log, with a short table below them that reaches a needed row."""
    lines = [*first_screen(headline, verdicts), ""]
    room = LINES - len(lines) - len(closing) - _AROUND_TABLE + 1
    rows = table.rows[max(needed + 1 - max(room, 1), 0) :]
    lines += _table(replace(table, rows=rows), room)
    return [*lines, *([""] if closing else []), *closing]


def _table(table: ShortTable, room: int) -> list[str]:
    """Return headings and rows of a short table, of which the last are left out where the room is too small.

    Of values along a range, those between are left out instead, at equal distances.

    Args:
        table: the table.
        room: lines for its rows, below a heading of one line, and one more where no row is left out.
    """
    n_rows = len(table.rows)
    for n_shown in range(max(min(n_rows, room + 1), 1), 0, -1):
        rows = table.rows[:: math.ceil(n_rows / n_shown)] if table.along else table.rows[:n_shown]
        lines = _rows_of_table(table, rows)
        n_left = n_rows - len(rows)
        if len(lines) - 1 <= room + (n_left == 0) or n_shown == 1:
            break
    left = f"{n_left} rows between" if table.along else f"{n_left} more rows"
    return [*lines, f"{_INDENT}… {left}: --all"] if n_left else lines


def _rows_of_table(table: ShortTable, rows: Sequence[ShortRow]) -> list[str]:
    """Return headings and rows; a name that is too long stands in lines of its own above its cells."""
    # What no row resolves says nothing here.
    columns = [
        (heading, list(cells))
        for heading, *cells in zip(table.headings, *(row.cells for row in rows), strict=True)
        if set(cells) - {UNRESOLVED, ""}
    ]
    named = [_name_in(table, row) for row in rows]
    longest = max(map(cell_len, [table.heading, *(name(_WHOLE_NAME) for name in named)]))
    headed = [[heading] for heading, _ in columns]
    widths = [max(map(cell_len, [heading, *cells])) for heading, cells in columns]
    if _fitting(widths, longest) < len(columns):
        headed = [_folded_heading(heading, max(map(cell_len, cells))) for heading, cells in columns]
        widths = [max(map(cell_len, [*head, *cells])) for head, (_, cells) in zip(headed, columns, strict=True)]
    n_fitting = _fitting(widths, longest)
    headed, widths = headed[:n_fitting], widths[:n_fitting]
    first = min(longest, WIDTH - len(_INDENT) - sum(widths) - len(widths) * len(_GAP))
    above = _folded_heading(table.heading, first)
    height = max(map(len, [above, *headed]))
    above = [*[""] * (height - len(above)), *above]
    columns = [
        ([*[""] * (height - len(head)), *head], cells) for head, (_, cells) in zip(headed, columns, strict=False)
    ]

    def line(name: str, cells: Iterable[str]) -> str:
        numbers = "".join(f"{_GAP}{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{_INDENT}{name:<{first}}{numbers}".rstrip()

    lines = [line(name, (head[at] for head, _ in columns)) for at, name in enumerate(above)]
    for at, (row, name) in enumerate(zip(rows, named, strict=True)):
        if table.in_blocks and (at == 0 or row.block != rows[at - 1].block):  # the estimators stand above their rows
            lines.append(f"{_INDENT}{row.estimators(WIDTH - len(_INDENT))}")
        if "…" in (beside := name(first)):
            lines += _folded(name(_WHOLE_NAME), _INDENT)
            beside = ""
        lines.append(line(beside, (cells[at] for _, cells in columns)))
    return lines


def _name_in(table: ShortTable, row: ShortRow) -> Callable[[int], str]:
    """Return what names a row in a width: below the names of its estimators only what distinguishes it."""
    return (lambda width: shortened(f"{_INDENT}{row.rest.lstrip(', ')}", width)) if table.in_blocks else row.name


def _fitting(widths: Sequence[int], longest: int) -> int:
    """Return how many columns fit beside names, which are shortened further where only one would."""
    n_fitting = 1
    for of_names in (_LONGEST_NAME, *_SHORTENED_NAMES):
        room = WIDTH - len(_INDENT) - min(longest, of_names)
        n_fitting = max(1, sum(total <= room for total in accumulate(width + len(_GAP) for width in widths)))
        if n_fitting > 1:
            break
    return n_fitting


def _folded_heading(heading: str, width: int) -> list[str]:
    """Return the lines of a heading over cells of some width."""
    return textwrap.wrap(heading, width, break_long_words=False, break_on_hyphens=False)


def noise_table(comparison: Answer, most: int) -> list[str]:
    """Return the relative noise of each estimator, sorted, with its interval drawn on an axis that all rows share.

    Args:
        comparison: of the estimators.
        most: how many rows are shown; of more, those in the middle are left out.
    """
    _, group_size = of_first_size(comparison)
    sizes = [] if group_size is None else comparison.frame["group_size"].dropna().unique()
    others = ", ".join(f"{one:g}" for one in sizes if one != group_size)
    rows, n_left_out, gap = _outermost(noise_of(comparison), most - bool(others))
    size = "" if group_size is None else f", groups of {group_size:g}"
    title = f"{_INDENT}samples for equal noise, {comparison.about.get('reference')} = 1{size}"
    said = [line for text in what_is_open(comparison) for line in _folded(text, _INDENT)]
    if others:
        said.append(f"{_INDENT}groups of {others}: --all")
    if not rows:
        return [title, *said]
    texts = [row.text() for row in rows]
    biases = [row.bias_text() for row in rows]
    widest = max(map(len, biases))
    biases = [_BIAS if widest else "", *(f"{bias:>{widest}}" for bias in biases)]
    names = [row.name(width=_LONGEST_BESIDE_BIAS if biases[0] else _LONGEST_NAME) for row in rows]
    first, second, third = (max(map(cell_len, column)) for column in (names, texts, biases))
    first = max(first, len(title) + 1 - len(_INDENT) - 2 - second - 2)  # the heading stands above two columns
    before = len(_INDENT) + first + 2 + second + 2
    axis = _Axis(rows, WIDTH - before - (third + 1 if third else 0))
    lines = [f"{title:<{before}}{axis.ticks:<{axis.width}} {biases.pop(0):>{third}}".rstrip()]
    for at, (row, name, text, bias) in enumerate(zip(rows, names, texts, biases, strict=True)):
        if n_left_out and at == gap:
            lines.append(f"{_INDENT}… {n_left_out} more between these: --all")
        line = f"{_INDENT}{name:<{first}}  {text:<{second}}  {axis.drawn(row):<{axis.width}} {bias}"
        lines.append(line.rstrip())
    if n_left_out and gap == len(rows):
        lines.append(f"{_INDENT}… {n_left_out} more: --all")
    return [*lines, *said]


def _outermost(rows: Sequence[NoiseRow], most: int) -> tuple[list[NoiseRow], int, int]:
    """Return the rows with the least and the most noise, how many are left out between them, and where."""
    if len(rows) <= most:
        return list(rows), 0, 0
    above = max(most - 1, 0) // 2
    below = max(most - 2 - above, 0)
    middle = rows[above : len(rows) - below]
    reference = [row for row in middle if row.is_reference]
    upper = [*rows[:above], *reference]
    return [*upper, *rows[len(rows) - below :]], len(middle) - len(reference), len(upper)


class _Axis:
    """A logarithmic axis in characters, that holds the intervals of all rows and 1."""

    def __init__(self, rows: Sequence[NoiseRow], width: int) -> None:
        ends = [end for row in rows for end in row.shown if math.isfinite(end) and end > 0]
        low, high = min([*ends, 1.0]), max([*ends, 1.0])
        span = max(high / low, 1.02) ** 0.04
        self.low, self.high = max(low / span, 1 / _FARTHEST), min(high * span, _FARTHEST)
        self.width = width

    def place(self, number: float) -> int:
        share = math.log(number / self.low) / math.log(self.high / self.low)
        return round(min(max(share, 0.0), 1.0) * (self.width - 1))

    @property
    def ticks(self) -> str:
        """The numbers of the axis, as many as fit."""
        fitting = [ticks for ticks in (*_TICKS, *_FINE_TICKS) if sum(self.low <= one <= self.high for one in ticks) > 1]
        letters = [" "] * (self.width + 2)
        taken: set[int] = set()
        marks = fitting[0] if fitting else (1.0,)
        for number in sorted(marks, key=lambda one: one != 1.0):
            if not self.low <= number <= self.high:
                continue
            text = f"{number:g}"
            first = min(max(self.place(number) - (len(text) - 1) // 2, 0), self.width - len(text))
            cells = range(first, first + len(text))
            if not taken & set(range(first - 2, first + len(text) + 2)):
                letters[first : first + len(text)] = text
                taken |= set(cells)
        return "".join(letters).rstrip()

    def drawn(self, row: NoiseRow) -> str:
        """Return an interval as a line, its estimate as a dot, and 1 as a stroke."""
        value, low, high = row.shown
        letters = [" "] * self.width
        letters[self.place(1.0)] = "│"
        first = self.place(low) if math.isfinite(low) and low > 0 else 0
        last = self.place(high) if math.isfinite(high) else self.width - 1
        if math.isfinite(low) or math.isfinite(high):
            for at in range(first, last + 1):
                letters[at] = "┼" if letters[at] in "│┼" else "─"
            for end, at, arrow in ((low, 0, "‹"), (high, self.width - 1, "›")):
                beyond = not math.isfinite(end) or not self.low <= end <= self.high
                if beyond and first <= at <= last:
                    letters[at] = arrow
        if math.isfinite(value):
            letters[self.place(value)] = "●"
        return "".join(letters)
