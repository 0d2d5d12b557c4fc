"""Every table of a run, as Markdown, LaTeX, page and terminal: read back, its numbers are the answer's."""

import io
import math
import re
from pathlib import Path

import pytest
from printed_numbers import NUMBER, as_number
from rich.console import Console

from gradstats.analyses import registry
from gradstats.analyses.numbers import UNRESOLVED, displayable_interval
from gradstats.cli.terminal import show_table
from gradstats.report.analysis_tables import frame_in_words, table_of
from gradstats.report.page import table_on_page
from gradstats.report.saved_results import read_results

FIGURES = Path(__file__).parents[2] / "figures"
#: Together they have every table, a metric that is not Euclidean, and numbers of all sizes.
RUNS = ("embedded", "embedded_values", "qwen_adam")
N = f"({NUMBER})"
#: What a cell may be → where value, lower and upper end stand among its numbers.
FORMS = {
    rf"{N}": (0, None, None),
    rf"{N} \[{N}, {N}\]": (0, 1, 2),
    rf"\[{N}, {N}\]": (None, 0, 1),
    rf"≥ {N}": (None, 0, None),
    rf"≤ {N}": (None, None, 0),
    rf"{N} \[≥ {N}\]": (0, 1, None),
    rf"{N} \[≤ {N}\]": (0, None, 1),
}


def of_markdown(table, _):
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.to_markdown().splitlines() if line.startswith("|")]
    return [[re.sub(r"\*\*|\\", "", cell).strip() for cell in line] for line in (lines[0], *lines[2:])]


def of_latex(table, _):
    lines = [line.removesuffix(r" \\") for line in table.to_latex().splitlines() if line.endswith(r"\\")]
    headings, *rows = (re.split(r"(?<!\\) & ", line) for line in lines)
    return [headings, *([name, *map(in_plain_text, cells)] for name, *cells in rows)]


def in_plain_text(formula):
    """A cell of LaTeX as the other markups write it: an interval in the place of errors."""
    bare = re.sub(r"\\textbf\{\\boldmath (.*)\}$", r"\1", formula).replace("{,}", "").strip("$")
    if bare.strip("\\ ") in ("--", "infty"):
        return UNRESOLVED if bare == "--" else "not bounded"
    power = re.search(r" \\cdot 10\^\{(-?\d+)\}", bare)
    factor, bare = (10.0 ** int(power[1]), bare.replace(power[0], "").strip("()")) if power else (1.0, bare)
    if errors := re.fullmatch(r"(-?[\d.]+)(?: \\pm ([\d.]+)|\^\{\+([\d.]+)\}_\{-([\d.]+)\})", bare):
        value, both, up, down = (float(one or "nan") for one in errors.groups())
        bare = "{} [{}, {}]".format(value, *((value - both, value + both) if errors[2] else (value - down, value + up)))
    bare = bare.replace(r"\leq", "≤").replace(r"\geq", "≥").replace(r"\ ", " ")
    return re.sub(r"-?\d[\d.e-]*", lambda one: f"{factor * float(one[0]):.12f}", bare).replace("-", "−")


def of_page(table, _):
    shown = table_on_page(table)
    rows = [[row["name"], *(re.sub(r"<[^>]*>", "", str(text)) for text, _ in row["cells"])] for row in shown["rows"]]
    return [[column["heading"] for column in shown["columns"]], *rows]


def of_terminal(table, monkeypatch):
    console = Console(width=10_000, record=True, file=io.StringIO())
    monkeypatch.setattr("gradstats.cli.terminal.console", console)
    show_table(table)
    return [re.split(r"\s{2,}", line.strip()) for line in console.export_text().splitlines() if line.strip(" ─")]


MARKUPS = {"markdown": of_markdown, "latex": of_latex, "page": of_page, "terminal": of_terminal}


def as_read(cell, heading):
    """Value, lower and upper end of a cell, NaN where there is none; a word as it stands."""
    power = re.search(r"\(×10([⁻⁰¹²³⁴-⁹]+)\)|10\^\{(-?\d+)\}", heading)
    factor = as_number(f"1·10{power[1]}") if power and power[1] else 10.0 ** int(power[2]) if power else 1.0
    for form, places in FORMS.items():
        if found := re.fullmatch(form, cell):
            numbers = [factor * as_number(one) for one in found.groups()]
            return tuple(math.nan if place is None else numbers[place] for place in places)
    return (math.nan,) * 3 if cell == UNRESOLVED else cell


def expected_of(row, name, limits):
    """The estimate and the ends of its interval as readers see them, or a word."""
    if isinstance(row.get(name), str):
        return row[name]
    ends = [end if name == "value" and "low" in row else f"{name}_{end}" for end in ("low", "high")]
    value, low, high = (float(row.get(column, math.nan)) for column in (name, *ends))
    if math.isinf(value):
        return "not bounded"
    # What is known exactly has no interval that holds together with others: it is its value.
    return displayable_interval(low if name.endswith("_simultaneous") and low == high else value, low, high, limits)


def agree(read, expected):
    """Whether what was read is what was written, up to the two digits of the half-width that are printed."""
    if isinstance(expected, str) or isinstance(read, str):
        return read == expected
    value, low, high = expected
    if math.isnan(value) and math.isfinite(low) != math.isfinite(high):  # a bound is rounded outwards
        (bound, end), sign = ((read[1], low), 1) if math.isfinite(low) else ((read[2], high), -1)
        return sign * bound <= sign * end and math.isclose(bound, end, rel_tol=0.1)
    alone = math.isfinite(read[0]) and all(map(math.isnan, read[1:]))
    if alone:  # what is known exactly
        known = [end for end in (low, high) if math.isfinite(end)]
        return math.isclose(read[0], value, rel_tol=5e-3) and all(
            math.isclose(value, one, rel_tol=1e-6) for one in known
        )
    off = 0.16 * (high - low) / 2 if math.isfinite(high - low) else math.inf
    pairs = zip(read, expected, strict=True)
    return all(abs(one - other) <= off if math.isfinite(other) else math.isnan(one) for one, other in pairs)


@pytest.mark.parametrize("markup", MARKUPS)
@pytest.mark.parametrize("run", RUNS)
def test_numbers_are_those_of_the_answer(markup, run, monkeypatch):
    answers = read_results(FIGURES / run).answers.values()
    declared_answers = [(registry.of_answer(answer.question), answer.frame) for answer in answers]
    shown = [(declared, frame) for declared, frame in declared_answers if declared and declared.shown_in("paper")]
    assert len(shown) >= 3
    for declared, frame in shown:
        table, numbers = table_of(declared, frame), declared.display_frame(frame_in_words(frame))
        headings, *rows = MARKUPS[markup](table, monkeypatch)
        limits = {name: declared.limits_of(name) for name in table.names}
        for row, of_row in zip(rows, numbers.to_dict("records"), strict=True):
            for cell, heading, name in zip(row[1:], headings[1:], limits, strict=True):
                expected = expected_of(of_row, name, limits[name])
                assert agree(as_read(cell, heading), expected), (declared.name, name, cell, expected)
