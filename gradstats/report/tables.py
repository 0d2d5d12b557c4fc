"""Tables for papers: numbers with their intervals, suitably rounded, as booktabs LaTeX, Markdown and CSV."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gradstats.analyses.numbers import Triple, common_exponent, format_estimate, power_of_ten
from gradstats.config.options import EUCLIDEAN
from gradstats.report.latex import (
    LatexColumn,
    Layout,
    fitting,
    latex_escape,
    latex_table,
    unbroken,
)
from gradstats.system.files import csv_text, write_csv
from gradstats.system.outputs import MARK, TABLE, OutputType, claim, is_marked, other_numbers, write_marked


@dataclass(frozen=True)
class Table:
    """A table with its caption, ready to be written.

    Attributes:
        caption: one paragraph: what, n, level, method; a metric and parameters that ``source`` has in its ``.attrs``
            are added.
        heading: of the first column, which names the rows.
        rows: name of each row.
        columns: for each column its heading and, for each row, ``(value, low, high)`` or a word.
        bold: ``(row, column)`` positions set in bold.
        source: the numbers in full, as they go into the CSV file.
        label: the label by which LaTeX refers to it.
        names: name in the CSV file → heading, of columns that can be asked for by that name.
        first: headings of the columns that a narrow page keeps longest; the others follow in their order.
        about: heading → sentence of the caption that is left out together with the column.
    """

    caption: str
    heading: str
    rows: tuple[str, ...]
    columns: Mapping[str, Sequence[Triple | str]]
    source: pd.DataFrame = field(repr=False)
    bold: frozenset[tuple[int, int]] = frozenset()
    label: str = "tab:gradstats"
    names: Mapping[str, str] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_caption(self) -> str:
        """The caption, with the metric of the gradients where it is not Euclidean, and the parameters unless all."""
        about, said = self.source.attrs, [self.caption]
        if about.get("params"):
            said.append(f"Gradients are with respect to the parameters that match '{about['params']}' only.")
        if about.get("metric", EUCLIDEAN) != EUCLIDEAN:
            said.append(f"Gradients are measured in the metric {about['metric']}.")
        return " ".join(said)

    def cells(self, markup: str) -> tuple[list[str], list[list[str]]]:
        """Return the headings and rows of text, in ``"latex"``, ``"markdown"`` or ``"plain"``."""
        escape, rows = _ESCAPES[markup], self.rows if markup in ("plain", "markdown") else map(unbroken, self.rows)
        headings, texts = [escape(self.heading)], [[escape(name)] for name in rows]
        for at, (heading, triples) in enumerate(self.columns.items()):
            exponent = common_exponent(triples)
            headings.append(_in_powers(escape(heading), exponent, markup))
            for row, triple in enumerate(triples):
                texts[row].append(cell_text(triple, markup, exponent, bold=(row, at) in self.bold))
        return headings, texts

    def headings_at(self, layout: Layout) -> list[str]:
        """Return the headings of the columns that a layout shows: those it asks for, or those that fit.

        Raises:
            ValueError: when it asks for columns that do not fit, or that the table lacks.
        """
        asked = list(dict.fromkeys(self.names.get(name, name) for name in layout.columns or ()))
        for heading in asked:
            if heading not in self.columns:
                by_heading = {heading: name for name, heading in self.names.items()}
                has = ", ".join(by_heading.get(heading, heading) for heading in self.columns)
                raise ValueError(f"columns: the table has no column {heading!r}, only {has}")
        ranked = asked or list(dict.fromkeys([*self.first, *self.columns]))
        fit = ranked[: fitting(self.rows, [self._latex_column(heading) for heading in ranked], layout)]
        if len(fit) < len(asked):
            raise ValueError(
                f"columns: {len(asked)} columns do not fit {layout.place} ({layout.inches:g} in); the first {len(fit)} "
                f"do ({', '.join(fit)}): name fewer, or take column='full'"
            )
        return asked or [heading for heading in self.columns if heading in fit]

    def to_latex(self, layout: Layout | None = None) -> str:
        r"""Return a ``table`` environment with booktabs rules.

        Args:
            layout: the venue and column whose width it fits; None: as wide as it is, which needs
                ``\usepackage{booktabs}`` alone.

        Raises:
            ValueError: as :meth:`headings_at`.
        """
        if layout is not None:
            headings = self.headings_at(layout)
            kept, caption = {self.about.get(heading) for heading in headings}, self.full_caption
            for sentence in set(self.about.values()) - kept:
                caption = caption.replace(f" {sentence}", "")
            columns = [self._latex_column(heading) for heading in headings]
            return latex_table(caption, self.label, self.heading, self.rows, columns, layout)
        headings, texts = self.cells("latex")
        lines = [" & ".join(row) + r" \\" for row in texts]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{latex_escape(self.full_caption)}}}",
                rf"\label{{{self.label}}}",
                rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}}",
                r"\toprule",
                " & ".join(headings) + r" \\",
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def _latex_column(self, heading: str) -> LatexColumn:
        triples = self.columns[heading]
        exponent, at = common_exponent(triples), list(self.columns).index(heading)
        return LatexColumn(
            heading,
            _in_powers("", exponent, "latex").strip(),
            [cell_text(triple, "latex", exponent, narrow=True) for triple in triples],
            [(row, at) in self.bold for row in range(len(self.rows))],
        )

    def to_markdown(self) -> str:
        """Return a pipe table with its caption underneath."""
        headings, texts = self.cells("markdown")
        rules = [":--", *["--:"] * len(self.columns)]
        lines = ["| " + " | ".join(row) + " |" for row in (headings, rules, *texts)]
        return "\n".join([*lines, "", markdown_escape(self.full_caption), ""])

    def save(
        self, path_stem: str | os.PathLike[str], *, overwrite: bool = True, layout: Layout | None = None
    ) -> list[Path]:
        """Write ``.tex``, ``.md`` and ``.csv`` (every digit of every number); returns the paths.

        Args:
            path_stem: path without a suffix.
            overwrite: replace an earlier table of other numbers.
            layout: as for :meth:`to_latex`.

        Raises:
            FileExistsError: when a file lies there that is not an earlier table, or is one that may not be replaced.
            ValueError: as :meth:`headings_at`.
        """
        *_, csv = _table_paths(path_stem)
        text = csv_text(self.source)
        _claim_tables(path_stem, overwrite=overwrite, difference=lambda: other_numbers(csv, text))
        # The CSV has no mark of its own: it is written last, so that one without its LaTeX is never ours.
        paths = self.save_texts(path_stem, layout=layout)
        write_csv(csv, self.source)
        return [*paths, csv]

    def save_texts(self, path_stem: str | os.PathLike[str], *, layout: Layout | None = None) -> list[Path]:
        """Write ``.tex`` and ``.md`` alone, where an answer holds the numbers; otherwise as :meth:`save`."""
        tex, markdown, _ = _table_paths(path_stem)
        write_marked(tex, f"% {MARK}\n{self.to_latex(layout)}", TABLE)
        write_marked(markdown, f"{self.to_markdown()}\n<!-- {MARK} -->\n", TABLE)
        return [tex, markdown]


def cell_text(cell: Triple | str, markup: str, exponent: int = 0, *, bold: bool = False, narrow: bool = False) -> str:
    """Return a cell in ``"latex"``, ``"markdown"``, ``"html"`` or ``"plain"``: a word, or a number with its interval.

    Args:
        cell: the word, or the estimate with the ends of its interval as readers see them.
        markup: how it is written.
        exponent: the power of ten in the heading of its column.
        bold: set it in bold, which plain text cannot.
        narrow: leave out the space between a number and its interval.
    """
    if isinstance(cell, str):
        text = _ESCAPES[markup](cell)
    else:
        text = format_estimate(*cell, exponent=exponent, markup=markup, narrow=narrow)
    in_bold = {"latex": rf"\textbf{{\boldmath {text}}}", "markdown": f"**{text}**", "html": f"<strong>{text}</strong>"}
    return in_bold.get(markup, text) if bold else text


def _table_paths(path_stem: str | os.PathLike[str]) -> list[Path]:
    """Return the files that a table is saved to: LaTeX, Markdown and CSV."""
    stem = Path(path_stem)
    if not stem.name:
        raise ValueError(f"{os.fspath(path_stem)!r} is a folder, not the name of a table without its suffix: name one")
    return [stem.with_name(stem.name + suffix) for suffix in (".tex", ".md", ".csv")]


def _claim_tables(path_stem: str | os.PathLike[str], **replacing: Any) -> None:
    """Refuse to save a table where a file lies that is not an earlier one, as :func:`claim` does."""
    tex, markdown, csv = _table_paths(path_stem)
    claim(path_stem, OutputType(TABLE.what, lambda _: True))
    for path in (tex, markdown):
        claim(path, TABLE)
    claim(csv, OutputType(TABLE.what, lambda _: is_marked(tex)), **replacing)


def markdown_escape(text: str) -> str:
    """Escape a text for Markdown."""
    return "".join("\\" + character if character in r"\`*_{}[]<>|#" else character for character in text)


_ESCAPES = {"latex": latex_escape, "markdown": markdown_escape, "html": html.escape, "plain": str}


def _in_powers(heading: str, exponent: int, markup: str) -> str:
    if exponent == 0:
        return heading
    if markup == "latex":
        return rf"{heading} ($\times 10^{{{exponent}}}$)"
    return f"{heading} (×{power_of_ten(exponent)})"
