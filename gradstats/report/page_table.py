"""The variance table of an HTML page: the ranking column first, each column with its definition."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from typing import TypedDict

import pandas as pd

from gradstats.plots.names import LABELS
from gradstats.report.columns import INDEX
from gradstats.report.frame_in_words import frame_in_words
from gradstats.report.glossary import TERM_OF_COLUMN, TERMS
from gradstats.report.numbers import common_exponent, number_with_interval
from gradstats.report.variance_columns import BEST_SET, VarianceColumn, best_set_marks, variance_columns
from gradstats.stats.variance.quantities import JUDGED, shown_in
from gradstats.stats.variance.winner import best_rows


class Definition(TypedDict):
    """A column: its heading, what it means, and the file that defines it, from the folder of the package."""

    name: str
    heading: str
    meaning: str
    file: str


class Cell(TypedDict):
    """One number of the table: its text, what sorts it, whether it is bold."""

    html: str
    key: str
    bold: bool


class Row(TypedDict):
    """One estimator of the table: its name in words, as a page shows it, and the label that files and commands use."""

    name: str
    html: str
    label: str
    cells: list[Cell]


class VarianceOnPage(TypedDict):
    """What the template shows of the variance comparison."""

    columns: list[Definition]
    rows: list[Row]
    level: str
    n_prompts: int | None
    reference: str | None
    notes: list[str]
    together: list[str]
    has_best_set: bool


def variance_on_page(frame: pd.DataFrame | None, labels: Mapping[str, str] | None = None) -> VarianceOnPage | None:
    """Return the table of a comparison for the page, or None where there is none.

    The matched ratio, by which estimators are ranked, comes first, so that it is beside the names on a narrow screen.

    Args:
        frame: of the comparison, with its ``.attrs``.
        labels: label of an estimator → name that the user gives it; the others are named in words.
    """
    if frame is None:
        return None
    saved = frame.copy()
    saved.attrs = frame.attrs | {LABELS: dict(labels or {})}
    frame = frame_in_words(saved)
    about = frame.attrs
    shown = [name for name in shown_in("page") if name in frame]
    columns: list[Definition] = [column_definition("estimator", "estimator")]
    rows: list[Row] = [
        named_row(str(name), str(label)) for name, label in zip(frame["estimator"], saved["estimator"], strict=True)
    ]
    names = {row["label"]: row["name"] for row in rows}
    together = []
    best = best_rows(saved)
    marks = best_set_marks(frame)
    listed = variance_columns(frame, shown, "page")
    judged = [column for column in listed if column.quantity == JUDGED.name]
    # The best set stands behind the columns of the matched ratio that it is drawn from.
    for column in (*judged, None, *(column for column in listed if column.quantity != JUDGED.name)):
        if column is None:
            _add_best_set(columns, rows, marks)
            continue
        exponent = common_exponent(column.triples)
        columns.append(column_definition(_name(column), column.heading + (f" (×10^{exponent})" if exponent else "")))
        if column.together:
            together.append(column.heading)
        for number, row in enumerate(rows):
            bold = column.quantity == JUDGED.name and not column.together and number in best
            row["cells"].append(_cell(column, number, exponent, bold))
    return {
        "columns": columns,
        "rows": rows,
        "level": f"{about['confidence_level']:.0%}" if "confidence_level" in about else "",
        "n_prompts": about.get("n_prompts"),
        "reference": about.get("reference"),
        "notes": [in_words_of(note, names) for note in about.get("notes", [])],
        "together": together,
        "has_best_set": marks is not None,
    }


def column_definition(name: str, heading: str) -> Definition:
    """Return what a column of the variance table means, in the words of the glossary.

    Args:
        name: as it is saved.
        heading: as the table prints it.
    """
    file = next(column.file for column in INDEX["variance"] if column.name == name)
    return {"name": name, "heading": heading, "meaning": TERMS[TERM_OF_COLUMN[name]], "file": f"gradstats/{file}"}


def named_row(name: str, label: str) -> Row:
    """Return the row of an estimator, as yet without cells."""
    return {"name": name, "html": breakable(name), "label": label, "cells": []}


def in_words_of(text: str, names: Mapping[str, str]) -> str:
    """Return a sentence in which the labels of some estimators are replaced by their names.

    >>> in_words_of("group_mean and my_group_mean(loo=True)", {"group_mean": "group mean"})
    'group mean and my_group_mean(loo=True)'
    """
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    labels = re.compile(rf"(?<![\w:.=])(?:{'|'.join(map(re.escape, longest_first))})(?![\w(]|:\w)")
    return labels.sub(lambda found: names[found[0]], text)


def breakable(name: str) -> str:
    """Return a name, escaped, that a narrow column may break where its words and parameters end.

    A value in words stays on the line of its parameter: the spaces of ``α = 0.8`` do not break.
    """
    kept = re.sub(r"(?<=\S) = (?=\S)", "\u00a0=\u00a0", html.escape(name))
    return re.sub(r"([_(,]|=(?!\u00a0))", r"\1<wbr>", kept)


def _name(column: VarianceColumn) -> str:
    return f"{column.quantity}_simultaneous" if column.together else column.quantity


def _cell(column: VarianceColumn, number: int, exponent: int, bold: bool) -> Cell:
    value, low, high = column.triples[number]
    key = value if math.isfinite(value) else low
    return {
        "html": number_with_interval(value, low, high, exponent=exponent, markup="html"),
        "key": repr(float(key)) if math.isfinite(key) else "",
        "bold": bold,
    }


def _add_best_set(columns: list[Definition], rows: list[Row], marks: list[str] | None) -> None:
    if marks is None:
        return
    columns.append(column_definition("in_best_set", BEST_SET))
    for row, mark in zip(rows, marks, strict=True):
        row["cells"].append({"html": mark, "key": {"yes": "0", "no": "1"}.get(mark, ""), "bold": False})
