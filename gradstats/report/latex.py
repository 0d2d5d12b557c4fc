"""LaTeX tables at the width of a venue's column: which columns fit, where lines break, and how numbers align."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from matplotlib.mathtext import MathTextParser

from gradstats.config.experiment import FiguresSection
from gradstats.plots.style import VENUES, style

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$", "∝": r"$\propto$", "∇": r"$\nabla$",
    "‖": r"$\Vert$", "π": r"$\pi$", "δ": r"$\delta$", "τ": r"$\tau$", "γ": r"$\gamma$", "λ": r"$\lambda$",
    "²": r"$^2$", "·": r"$\cdot$", "×": r"$\times$", "−": r"$-$", "–": "--", "|": r"$|$", "<": r"$<$", ">": r"$>$",
    "ε": r"$\varepsilon$", "ĝ": r"$\hat g$", "χ": r"$\chi$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "Σ": r"$\Sigma$",
    "β": r"$\beta$", "σ": r"$\sigma$", "μ": r"$\mu$", "∞": r"$\infty$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$",
    "\u00a0": "~",
}  # fmt: skip

# Of 8 pt Computer Modern, the widest of the usual text faces, in ems.
_NARROW, _USUAL, _CAPITAL, _WIDE, _DIGIT = 0.36, 0.56, 0.76, 0.9, 0.532
# Digits at 6 pt are wider for their size.
_SCRIPT = 0.865
_SYMBOL = 1.3  # with the space around it
# Letters of a word that may be broken.
_LONG = 12
_SCRIPTS = re.compile(r"(?:[\^_]\{[^{}]*\})+")
_FORMULA = re.compile(r"(\$[^$]+\$)")
_VALUE = re.compile(r"(?<=[^\s=]) = (?=[^\s=])")


def unbroken(name: str) -> str:
    """Return a name in which no line breaks between a parameter and its value, as in ``N = 2``."""
    return _VALUE.sub("\u00a0=\u00a0", name)


def latex_escape(text: str) -> str:
    r"""Escape a text for LaTeX, except for formulas between dollar signs, as figures set them.

    >>> latex_escape("50%, at $x_1$")
    '50\\%, at $x_1$'
    """
    parts = _FORMULA.split(text)
    return "".join(
        part if at % 2 and _is_formula(part) else "".join(_LATEX.get(character, character) for character in part)
        for at, part in enumerate(parts)
    )


def breakable(text: str) -> str:
    r"""Escape a text for LaTeX, with a possible line break inside of labels, and none before a parameter's value.

    >>> breakable("length_weighted(loo=True)")
    'length\\_\\allowbreak{}weighted(\\allowbreak{}loo=\\allowbreak{}True)'
    >>> breakable("length-weighted, α = 0.8")
    'length-weighted, $\\alpha$~=~0.8'
    """
    return " ".join(r"\allowbreak{}".join(map(latex_escape, _parts(word))) for word in _words(text))


def unbreakable(text: str) -> list[str]:
    """Return the pieces between the places where :func:`breakable` lets a line break."""
    return [part for word in _words(text) for part in _parts(word)] or [""]


def wrapped(text: str, width: float) -> list[str]:
    """Break a text into lines of at most a width in ems where that is possible."""
    lines: list[str] = []
    for at, word in enumerate(_words(text)):
        for first, part in enumerate(_parts(word)):
            joint = " " if at and first == 0 else ""
            if lines and text_width(lines[-1] + joint + part) <= width:
                lines[-1] += joint + part
            else:
                lines.append(part)
    return lines or [""]


def text_width(text: str) -> float:
    """Estimate how wide a text is set, in ems, from above."""
    parts = _FORMULA.split(text)
    return sum(
        formula_width(part) if at % 2 else sum(_letter_width(letter) for letter in part)
        for at, part in enumerate(parts)
    )


def formula_width(cell: str) -> float:
    """Estimate how wide a number with its interval is set in LaTeX, in ems, from above."""
    inner = cell.replace("$", "").replace("{,}", ",")
    stacked = (match.group() for match in _SCRIPTS.finditer(inner))
    scripts = sum(max(map(_row_width, re.findall(r"\{([^{}]*)\}", script))) * _SCRIPT for script in stacked)
    return _row_width(_SCRIPTS.sub("", inner)) + scripts


def _words(text: str) -> list[str]:
    """Return the words of a text; a parameter and its value are one, and so is a formula."""
    formulas = iter(_FORMULA.findall(text))
    words = unbroken(_FORMULA.sub("$$", text)).split(" ")
    return [re.sub(r"\$\$", lambda _: next(formulas), word) for word in words if word]


@cache
def _is_formula(text: str) -> bool:
    """Return whether figures can set a text as a formula; what else LaTeX would do with it, is not let through."""
    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def _parts(word: str) -> list[str]:
    """Return the parts of a word that may stand on different lines; a short one, or one with its value, stays whole."""
    parts = re.split(r"(?<=[_(=,/:])", word) if len(word) > _LONG and not set(word) & {"\u00a0", "$"} else [word]
    return [part for part in parts if part] or [""]


def _row_width(text: str) -> float:
    commands = re.findall(r"\\[a-z]+", text)
    rest = re.sub(r"\\[a-z]+", "", text).replace(" ", "")
    return _SYMBOL * (len(commands) + _count(rest, "<>")) + sum(
        0.83 if letter in "+-" else _letter_width(letter) for letter in rest if letter not in "<>"
    )


def _letter_width(letter: str) -> float:
    if letter.isdigit():
        return _DIGIT
    if letter in " \u00a0.,:;!|()[]'ijltfr-":
        return _NARROW
    if letter in "mwMW%@—∞<>=+−×±":
        return _WIDE
    return _CAPITAL if letter.isupper() or not letter.isascii() else _USUAL


def _count(text: str, letters: Iterable[str]) -> int:
    return sum(text.count(letter) for letter in letters)


_POINTS_PER_INCH = 72.27
_GAP = 0.9  # between columns, in ems
_BOLD = 1.16  # how much wider bold digits are
_DIGIT_IN_BOLD = 0.1  # in ems
# Widths are estimates: a table that needs more than this share of the width has a column that takes what is left.
_SURE = 0.9
#: Share of the width that long row labels may take before they are broken into lines.
_LABELS = 0.36
#: Height of the rows on one page, which has about 9 in, beside the caption and the headings.
_INCHES_OF_ROWS = 6.5
_NUMBER = re.compile(r"\$(-?\d+(?:\.\d+)?)((?:[\^_]\{[^{}]*\})*)\$")


@dataclass(frozen=True)
class Layout:
    """Where a LaTeX table goes.

    Attributes:
        venue: one of ``gradstats.plots.VENUES``.
        column: ``"half"`` or ``"full"`` width; None is one column of the venue.
        columns: which columns to show, by their names in the CSV file or by their headings; empty: those that fit.
        siunitx: align numbers at the decimal point, with columns of the package siunitx (version 3).

    Raises:
        ValueError: for an unknown venue or column.
    """

    venue: str = "icml"
    column: str | None = None
    columns: tuple[str, ...] = ()
    siunitx: bool = False

    def __post_init__(self) -> None:
        style(self.venue, self.column)

    @property
    def inches(self) -> float:
        """The printed width."""
        return cast(tuple[float, float], style(self.venue, self.column)["figure.figsize"])[0]

    @property
    def font_size(self) -> float:
        """The size of the text in points, that of the venue's figures."""
        return VENUES[self.venue].font_size

    @property
    def ems(self) -> float:
        """The printed width in ems of the text."""
        return self.inches * _POINTS_PER_INCH / self.font_size

    @property
    def place(self) -> str:
        """A name for messages: ``icml's half column``."""
        page = VENUES[self.venue]
        return f"{self.venue}'s {'half' if self.inches == page.half else 'full'} column"


@dataclass(frozen=True)
class LatexColumn:
    """A column of numbers.

    Attributes:
        heading: in words.
        power: ``(×10⁻³)`` in LaTeX, or empty.
        cells: numbers with their intervals, in LaTeX.
        bold: for each of them, whether it is bold.
    """

    heading: str
    power: str
    cells: Sequence[str]
    bold: Sequence[bool]

    @property
    def cell_width(self) -> float:
        """The width of the widest cell in ems."""
        widths = [
            formula_width(cell) * (_BOLD if bold else 1.0) for cell, bold in zip(self.cells, self.bold, strict=True)
        ]
        return max(widths, default=0.0)

    @property
    def lines(self) -> list[str]:
        """The heading, broken into lines about as wide as the cells."""
        longest = max(map(text_width, unbreakable(self.heading)))
        return wrapped(self.heading, max(self.cell_width, longest, 4.0))

    def width(self, siunitx: bool) -> float:
        """Return the width in ems."""
        cells = _aligned_width(self) if siunitx else self.cell_width
        return max(cells, formula_width(self.power), *map(text_width, self.lines))


def layout_of(figures: FiguresSection) -> Layout:
    """Return the layout of tables that go beside the figures of an experiment."""
    return Layout(figures.venue, figures.column)


def fitting(rows: Sequence[str], columns: Sequence[LatexColumn], layout: Layout) -> int:
    """Return how many columns fit, in their order, beside labels of rows; at least one."""
    left = layout.ems - _label_width(rows, layout)
    n = 0
    for column in columns:
        left -= column.width(layout.siunitx) + _GAP
        if left < 0:
            break
        n += 1
    return max(n, 1)


def latex_table(
    caption: str, label: str, heading: str, rows: Sequence[str], columns: Sequence[LatexColumn], layout: Layout
) -> str:
    r"""Return a ``table`` environment of a venue's width; ``table*`` across the two columns of a page.

    A table too tall for a page is continued in further environments of the same number. Labels of rows break where the
    numbers leave too little room; a table narrower than the column keeps its width. It needs
    ``\usepackage{array,booktabs,tabularx}``, and ``siunitx`` where the layout asks for it.
    """
    page = VENUES[layout.venue]
    across = page.columns == 2 and layout.inches > page.half
    boxed = page.columns == 1 and layout.inches < page.full
    natural = max(text_width(text) for text in (heading, *rows)) + sum(
        column.width(layout.siunitx) + _GAP for column in columns
    )
    first = "l" if natural <= _SURE * layout.ems else r">{\raggedright\arraybackslash\hangindent=1em}X"
    spec = f"@{{}}{first}{''.join(_spec(column, layout) for column in columns)}@{{}}"
    open_table, close_table = (
        (rf"\begin{{tabular}}{{{spec}}}", r"\end{tabular}")
        if first == "l"
        else (rf"\begin{{tabularx}}{{\linewidth}}{{{spec}}}", r"\end{tabularx}")
    )
    environment = "table*" if across else "table"
    size = layout.font_size
    packages = "array,booktabs,tabularx" + (",siunitx" if layout.siunitx else "")
    written = [rf"% {layout.place}, {layout.inches:g} in; needs \usepackage{{{packages}}}"]
    for part in _pages(rows, columns, layout):
        continued = part.start > 0
        lines = [
            " & ".join([breakable(rows[at]), *(_cell(column, at, layout) for column in columns)]) + r" \\"
            for at in part
        ]
        written += [
            rf"\begin{{{environment}}}",
            *([rf"\begin{{minipage}}{{{layout.inches:g}in}}"] if boxed else []),
            r"\centering",
            r"\emergencystretch=3em",
            *([r"\addtocounter{table}{-1}"] if continued else []),
            rf"\caption{{{'Continued.' if continued else breakable(caption)}}}",
            *([] if continued else [rf"\label{{{label}}}"]),
            r"\smallskip",
            *([r"\sisetup{detect-weight=true}"] if layout.siunitx else []),
            rf"\fontsize{{{size:g}}}{{{1.2 * size:.3g}}}\selectfont",
            *([r"\renewcommand{\arraystretch}{1.2}"] if _has_stacks(columns) else []),
            rf"\setlength{{\tabcolsep}}{{{_GAP / 2 * size:.3g}pt}}",
            open_table,
            r"\toprule",
            " & ".join([breakable(heading), *(_stacked(column) for column in columns)]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            close_table,
            *([r"\end{minipage}"] if boxed else []),
            rf"\end{{{environment}}}",
        ]
    return "\n".join([*written, ""])


def _pages(rows: Sequence[str], columns: Sequence[LatexColumn], layout: Layout) -> list[range]:
    """Return the rows of each page, all on one where they fit."""
    left = layout.ems - sum(column.width(layout.siunitx) + _GAP for column in columns)
    leading = 1.2 * layout.font_size * (1.2 if _has_stacks(columns) else 1.0) / _POINTS_PER_INCH
    parts, height = [range(0)], 0.0
    for at, name in enumerate(rows):
        # A line after the first is indented by an em.
        needed = leading * len(wrapped(name, left - 1.0))
        if len(parts[-1]) and height + needed > _INCHES_OF_ROWS:
            parts.append(range(at, at))
            height = 0.0
        parts[-1] = range(parts[-1].start, at + 1)
        height += needed
    return parts


def _label_width(rows: Sequence[str], layout: Layout) -> float:
    """Return the width that labels need: all of the longest, or enough to break it into a few lines."""
    longest_piece = max((text_width(piece) for name in rows for piece in unbreakable(name)), default=0.0)
    longest = max(map(text_width, rows), default=0.0)
    return min(longest, max(longest_piece + 1.0, _LABELS * layout.ems))  # with the indent of a broken label


def _has_stacks(columns: Sequence[LatexColumn]) -> bool:
    """Return whether a number has a superscript above a subscript, which touch those of the next row otherwise."""
    return any("}_{" in cell for column in columns for cell in column.cells)


def _stacked(column: LatexColumn) -> str:
    lines = [*map(latex_escape, column.lines), *([column.power] if column.power else [])]
    if len(lines) == 1:
        return f"{{{lines[0]}}}"
    inner = r" \\ ".join(lines)
    return rf"{{\begin{{tabular}}[b]{{@{{}}c@{{}}}}{inner}\end{{tabular}}}}"


def _cell(column: LatexColumn, at: int, layout: Layout) -> str:
    text, bold = column.cells[at], column.bold[at]
    if layout.siunitx and (found := _NUMBER.fullmatch(text)):
        number, interval = found.groups()
        behind = (rf"{{\boldmath${interval}$}}" if bold else f"{{${interval}$}}") if interval else ""
        return rf"\bfseries {number}{behind}" if bold else f"{number}{behind}"
    text = rf"\textbf{{\boldmath {text}}}" if bold else text
    return f"{{{text}}}" if layout.siunitx else text


def _aligned(column: LatexColumn) -> list[tuple[str, str, str]]:
    """Return what stands before and behind the decimal point, and the interval, of cells that begin with a number."""
    aligned = []
    for match in filter(None, map(_NUMBER.fullmatch, column.cells)):
        number, interval = match.groups()
        before, _, behind = number.partition(".")
        aligned.append((before, behind, interval))
    return aligned


def _aligned_width(column: LatexColumn) -> float:
    parts = _aligned(column)
    if not parts:
        return column.cell_width
    bold = _BOLD if any(column.bold) else 1.0
    widths = [max(formula_width(part) for part in side) for side in zip(*parts, strict=True)]
    return max(column.cell_width, bold * (sum(widths) + formula_width(".")))


def _spec(column: LatexColumn, layout: Layout) -> str:
    parts = _aligned(column) if layout.siunitx else []
    if not parts:
        return "c"
    sign = "-" if any(whole.startswith("-") for whole, _, _ in parts) else ""
    whole = max(len(whole.lstrip("-")) for whole, _, _ in parts)
    decimals = max(len(part) for _, part, _ in parts)
    widest = max((interval for _, _, interval in parts), key=formula_width)
    # siunitx reserves the room of digits that are not bold.
    bold = rf"\boldmath\kern{(whole + decimals) * _DIGIT_IN_BOLD:.2f}em" if any(column.bold) else ""
    behind = f", table-space-text-post={{{bold}${widest}$}}, table-align-text-post=false" if widest or bold else ""
    return f"S[table-format={sign}{whole}.{decimals}{behind}]"
