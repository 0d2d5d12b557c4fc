"""A run directory → one self-contained HTML page; and the parts of a page that the gallery of runs shares."""

from __future__ import annotations

import html
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from gradstats.analyses import registry
from gradstats.analyses.declaration import SETTLED, Analysis
from gradstats.analyses.numbers import Triple, common_exponent, power_of_ten
from gradstats.analyses.variance import TOGETHER
from gradstats.answers import Answer
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.display_names import distinct_names
from gradstats.plots.names import LABELS
from gradstats.plots.quantities import JUDGED, QUANTITIES
from gradstats.report.analysis_tables import frame_in_words, short_table, table_of
from gradstats.report.columns import INDEX
from gradstats.report.glossary import TERM_OF_COLUMN, TERMS
from gradstats.report.prompts_on_page import prompts_on_page
from gradstats.report.saved_results import SavedResults, read_results, refuse_inside_run, writing_into
from gradstats.report.tables import Table, cell_text
from gradstats.report.verdict import (
    Compared,
    Naming,
    Verdict,
    alpha_verdict,
    alpha_verdicts,
    compared_first,
    headline,
    verdicts,
    what_is_open,
)
from gradstats.system.files import atomic_path, to_json
from gradstats.system.outputs import REPORT, is_marked, refuse_foreign, refuse_links

if TYPE_CHECKING:
    from markupsafe import Markup


def rendered(template: str, **shown: object) -> str:
    """Return a template of this package filled in; all text is escaped, and an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gradstats.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["interval_kept"] = interval_kept
    return environment.get_template(template).render(shown)


def interval_kept(text: str) -> Markup:
    """Return a cell, escaped, that a narrow column breaks only between a number and its interval.

    >>> str(interval_kept("0.79 [0.48, 1.10]"))
    '0.79 <span class="ends">[0.48, 1.10]</span>'
    """
    from markupsafe import Markup

    return Markup(re.sub(r" (\[[^]]*\])$", r' <span class="ends">\1</span>', html.escape(text)))


def write_page(page: str, target: Path) -> Path:
    """Write a page, whole or not at all; the caller has asked that nothing foreign is replaced."""
    try:
        with atomic_path(target) as partial:
            partial.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OSError(
            f"the report cannot be written to {target} ({error.strerror or error}): choose another with --out"
        ) from error
    return target


class Definition(TypedDict):
    """A column: its heading, what it means, and the file that defines it, from the root of the repository."""

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


def variance_on_page(answer: Answer | None, labels: Mapping[str, str] | None = None) -> VarianceOnPage | None:
    """Return the table of a comparison for the page, or None where there is none."""
    if answer is None:
        return None
    saved = answer.frame.copy()
    saved.attrs |= {LABELS: dict(labels or {})}
    # The relative noise, by which estimators are ranked, stands beside the names on a narrow screen.
    declared = registry.get("variance")
    ranked = sorted(declared.columns, key=lambda one: (not one.name.startswith(JUDGED.name), one.name != "in_best_set"))
    table = table_of(replace(declared, columns=tuple(ranked)), saved, "page")
    about, columns = frame_in_words(saved).attrs, [column_definition("estimator", "estimator")]
    labels_of_rows = [str(label) for label in saved["estimator"]]
    rows = [named_row(name, label) for name, label in zip(table.rows, labels_of_rows, strict=True)]
    for at, (name, heading) in enumerate(table.names.items()):
        cells = table.columns[heading]
        exponent = common_exponent(cells)
        columns.append(column_definition(name, heading + (f" (×{power_of_ten(exponent)})" if exponent else "")))
        for number, (row, one) in enumerate(zip(rows, cells, strict=True)):
            row["cells"].append(cell(one, exponent, bold=(number, at) in table.bold))
    names = {row["label"]: row["name"] for row in rows}
    together = [heading for name, heading in table.names.items() if name.endswith("_simultaneous")]
    return {
        "columns": columns,
        "rows": rows,
        "level": f"{about['confidence_level']:.0%}" if "confidence_level" in about else "",
        "n_prompts": about.get("n_prompts"),
        "reference": about.get("reference"),
        "notes": [in_words_of(note, names) for note in answer.notes],
        "together": together,
    }


def column_definition(name: str, heading: str) -> Definition:
    """Return what a column of the variance table means, in the words of the glossary."""
    file = next(column.file for column in INDEX["variance"] if column.name == name)
    return {"name": name, "heading": heading, "meaning": TERMS[TERM_OF_COLUMN[name]], "file": f"gradstats/{file}"}


def cell(one: Triple | str, exponent: int = 0, *, bold: bool = False) -> Cell:
    """Return a cell, sorted by its number or, where that is not known, the lower end; of a best set "yes" is first."""
    text = cell_text(one, "html", exponent)
    if isinstance(one, str):
        return {"html": text, "key": {"yes": "0", "no": "1"}.get(one, ""), "bold": bold}
    value, low, _ = one
    key = value if math.isfinite(value) else low
    return {"html": text, "key": repr(float(key)) if math.isfinite(key) else "", "bold": bold}


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


# What the inks of each theme become on the page, so that figures follow its dark mode: text, paper, grid.
_PAGE_INKS = ("currentColor", "var(--paper)", "var(--rule)")


def write_report(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    svgs: Mapping[str, str] | None = None,
) -> Path:
    """Write the results of a run to one HTML file that needs no network.

    Args:
        path: a run directory.
        out: the file; ``report.html`` in the run directory by default.
        svgs: name → SVG of the figures, where they have just been drawn
            (:func:`gradstats.report.figures.draw_run_for_report`); None draws them.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: when the run holds no numbers; states the command that writes them.
        FileExistsError: when the file exists and is not a report, or belongs to another run.
        LockedError: when it is written into a run directory on which another process works.
        ValueError: when it is written into a run directory that contains symbolic links.
        OSError: when the file cannot be written.
    """
    path = Path(path)
    if out is None:
        with writing_into(path):
            refuse_links(path)
            return write_page_of_run(path, svgs)
    target = Path(out)
    refuse_inside_run(target, source=path)
    with writing_into(target):
        refuse_foreign(target, REPORT)
        page = report_page(read_results(path), svgs)
        refuse_foreign(target, REPORT)  # drawing takes seconds
        return write_page(page, target)


def write_page_of_run(path: Path, svgs: Mapping[str, str] | None = None) -> Path:
    """Write ``report.html`` into a run directory, whose lock the caller holds; otherwise as :func:`write_report`."""
    refuse_foreign(path / "report.html", REPORT)
    return write_page(report_page(read_results(path), svgs), path / "report.html")


def remove_page(run: Path) -> None:
    """Remove the page of an earlier analysis, where the present one has nothing to report; another file stays."""
    page = run / "report.html"
    if page.is_file() and is_marked(page):
        page.unlink()


def report_page(run: SavedResults, svgs: Mapping[str, str] | None = None) -> str:
    """Return the page as text, with the figures given as SVG, or drawn here where None are."""
    figures = _figures_of_page(run, svgs)
    drawn = [figure["name"] for figure in figures]
    questions = questions_on_page(run, figures)
    variance = variance_on_page(run.answers.get("variance"), run.figure_style.labels)
    of_variance = [] if variance is None else variance["notes"]
    others = [question for question in questions if question["section"] != "variance"]  # whose notes these are
    shared = shared_notes([of_variance, *(question["notes"] for question in others)])
    for question in questions:
        question["notes"] = [one for one in question["notes"] if one not in shared]
    shown = {name for question in questions for name in question["figures"]}
    return rendered(
        "report.html.j2",
        name=run.name,
        description=run.settings.get("description", ""),
        headline=_headline(run),
        verdicts=_verdicts(run),
        questions=questions,
        measured=_what_was_measured(run),
        alpha=_alpha(run),
        alpha_verdicts=_alpha_verdicts(run),
        sentences=[] if run.alpha is None else run.alpha.get("sentences", []),
        variance=variance,
        notes=[one for one in of_variance if one not in shared],
        shared_notes=shared,
        here=not run.path.is_absolute(),
        most_rows=MOST_OPEN_ROWS,
        together=TOGETHER,
        prompts=prompts_on_page(run),
        terms=TERMS,
        figures={figure["name"]: figure for figure in figures},
        more_figures=[name for name in drawn if name not in shown],
        commands=_commands(run),
        remarks=run.manifest.get("remarks", []),
        settings=run.settings,
        experiment=_text(run.path / "experiment.yaml"),
        manifest=to_json(run.manifest) if run.manifest else "",
    )


class QuestionOnPage(TypedDict):
    """What a section shows: what the analysis declares, filled with the numbers of the run."""

    id: str  # on the page, that of its files
    section: str  # of an experiment file, of what every run answers in words of its own; otherwise ""
    question: str
    asked: str  # of what, where the run recorded it; in the heading where a question was asked more than once
    answer: str  # "" where the run did not record it
    figures: list[str]
    n_open: int  # of the figures; the others are folded
    headings: list[str]
    rows: list[list[str]]
    caption: str
    notes: list[str]
    command: str  # "" where the run did not record what was asked


def shared_notes(of_sections: Iterable[Iterable[str]]) -> list[str]:
    """Return the notes that qualify several sections, in order of appearance, which the page shows once above them.

    >>> shared_notes([["a", "b"], ["b", "b"], ["a"], ["c"]])
    ['a', 'b']
    """
    times = Counter(note for notes in of_sections for note in dict.fromkeys(notes))
    return [note for note, n in times.items() if n > 1]


#: Figures that are open when the page is.
MOST_OPEN = 6
#: Rows of a section's table that are open; a longer table is folded below them.
MOST_OPEN_ROWS = 8
# A longer answer goes through the rows of its table, and is read with the notes.
_LONGEST_ANSWER = 400
# Letters of a name that no line of the page shortens.
_WHOLE_NAME = 1000


def questions_on_page(run: SavedResults, figures: Sequence[Mapping[str, str]]) -> list[QuestionOnPage]:
    """Return a section for each answer of the run, in the order of the questions; α and estimators always have one.

    The first figure of each is open, up to six of them.
    """
    from gradstats.report.run_tables import run_tables

    drawn = [figure["name"] for figure in figures]
    tables = run_tables(run.answers, run.name, run.figure_style)
    answers: dict[str, Answer | None] = dict.fromkeys(registry.OF_EVERY_RUN) | dict(run.answers)
    found = [
        _question(run, name, declared, answer, tables, drawn)
        for name, answer in answers.items()
        if isinstance(declared := registry.of_answer(name if answer is None else answer.question), Analysis)
    ]
    for one in [one for one in found if one["figures"]][:MOST_OPEN]:
        one["n_open"] = 1
    times = Counter(one["question"] for one in found)
    for one in found:
        if times[one["question"]] > 1 and one["asked"]:
            one["question"] += f" ({one['asked']})"
    return found


def _question(
    run: SavedResults,
    name: str,
    analysis: Analysis,
    answer: Answer | None,
    tables: Mapping[str, Table],
    drawn: Collection[str],
) -> QuestionOnPage:
    naming = _names_of(run, answer)
    said = "" if answer is None else in_words_of(answer.sentence, naming)
    is_long = len(said) > _LONGEST_ANSWER
    asked = None if answer is None else analysis.words(answer)
    notes = [] if answer is None else [in_words_of(one, naming) for one in answer.notes]
    own_figures = dict.fromkeys([*(figure.name for figure in analysis.figures), name])
    found: QuestionOnPage = {
        "id": name,
        "section": analysis.section,
        "question": analysis.question,
        "asked": in_words_of(" ".join(asked or []), naming),
        "answer": "" if is_long else said,
        "figures": [one for one in own_figures if one in drawn],
        "n_open": 0,
        "headings": [],
        "rows": [],
        "caption": "",
        "notes": ([said] if is_long else []) + notes,
        "command": _command(run, analysis, answer, asked),
    }
    if analysis.section:
        found["answer"] = ""
        if analysis.section == "length_scaling" and run.alpha is not None:
            verdict = alpha_verdict(run.alpha)
            found["answer"] = f"α = {verdict}." if verdict[:1].isdigit() else f"α is {verdict}."
        if analysis.section == "variance":
            compared, in_words = _compared(run)
            if compared is not None:
                found["answer"] = _answer_on_estimators(compared, in_words)
                found["headings"], found["rows"] = _noise_on_page(compared, in_words)
        return found
    declared = analysis.leading
    table = None if declared is None else tables.get(name if declared is analysis else declared.name)
    if declared is not None and table is not None and answer is not None and not answer.about.get(SETTLED):
        short = short_table(declared, frame_in_words(table.source), table)
        if short.headings:
            found["headings"], found["rows"] = short.cells(_WHOLE_NAME)
        found["caption"] = table.full_caption
    return found


def _names_of(run: SavedResults, answer: Answer | None) -> dict[str, str]:
    """Return the name in words of each estimator that an answer, or what was asked, mentions."""
    if answer is None:
        return {}
    mentioned = [answer.about[key] for key in ("curve", "reference") if key in answer.about]
    if "estimator" in answer.frame:
        mentioned += answer.frame["estimator"].tolist()
    return distinct_names(dict.fromkeys(map(str, mentioned)), run.figure_style.labels)


def _answer_on_estimators(compared: Compared, naming: Naming) -> str:
    """Return which estimator to use and which to avoid."""
    said = {one.topic: one.text for one in verdicts(None, compared, naming)}
    best, avoid = said.get("best", ""), said.get("avoid", "")
    sentences = [best[:1].upper() + best[1:], f"Avoid {avoid}" if avoid else ""]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _noise_on_page(compared: Compared, naming: Naming) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the relative noise, with a row for estimators that are equal by construction."""
    rows = [[one.name(naming, _WHOLE_NAME), one.text(), one.bias_text()] for one in compared.estimators]
    size = "" if compared.group_size is None else f", {compared.group_size:g} completions a group"
    headings = [f"estimator{size}", JUDGED.heading, QUANTITIES["matched_bias_share"].heading]
    n_columns = len(headings) if any(row[-1] for row in rows) else len(headings) - 1
    return headings[:n_columns], [row[:n_columns] for row in rows]


def _command(run: SavedResults, analysis: Analysis, answer: Answer | None, asked: Sequence[str] | None) -> str:
    """Return the command that asks again; "" where it needs arguments that the answer does not state."""
    level = CONFIDENCE_LEVEL if answer is None else float(answer.about.get("confidence_level", CONFIDENCE_LEVEL))
    of_run = run.level_of_alpha if analysis.section == "length_scaling" else run.confidence_level
    # A run's own level is what is not given.
    at_level = [] if level == of_run == CONFIDENCE_LEVEL else ["--confidence-level", f"{level:g}"]
    if analysis.section:
        return shlex.join(["gradstats", analysis.name, as_given(run.path), *at_level])
    label = analysis.name if answer is None else answer.question
    return "" if asked is None else shlex.join(["gradstats", "ask", as_given(run.path), label, *asked, *at_level])


def as_given(path: Path) -> str:
    """Return what commands on the page call a run: its path as it was given, which is seen from where that was.

    Of a path without a name, as ``.``, the folder in full.
    """
    return str(path if path.name else path.resolve())


def _headline(run: SavedResults) -> str:
    """Return the line above the verdicts, below the name of the run; "" where it recorded no completions."""
    points = run.points
    if points is None:
        return ""
    return headline(
        "",
        len(set(points["prompt_id"])),
        len(points),
        rewards=points["reward"].to_numpy() if "reward" in points else None,
        lengths=points["length"].to_numpy(),
        n_truncated=int(points["truncated"].to_numpy().sum()) if "truncated" in points else 0,
    ).strip()


def _compared(run: SavedResults) -> tuple[Compared | None, Naming]:
    """Return the comparison of estimators as a reader needs it first, where there is one, and what they are called."""
    frame = run.variance
    compared = None if frame is None or frame.empty else compared_first(frame)
    names = {} if frame is None else distinct_names(map(str, frame["estimator"]), run.figure_style.labels)
    return compared, lambda label: names.get(label, label)


def _verdicts(run: SavedResults) -> list[Verdict]:
    """Return the verdicts with which the terminal begins as well, with estimators named in words."""
    compared, naming = _compared(run)
    found = verdicts(run.alpha, compared, naming, batch_sizes=run.table("batch_size"))
    return found if compared is None else [*found, *(Verdict("open", text) for text in what_is_open(compared, naming))]


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """Return an SVG file as an element of a page, with unique ids, the page's colours and a name for screen readers."""
    from gradstats.plots.style import INK

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", body)
    for inks in INK.values():
        for ink, colour in zip(inks, _PAGE_INKS, strict=True):
            body = body.replace(ink, colour)
    width, height = (float(number) for number in re.findall(r'(?:width|height)="([\d.]+)pt"', body)[:2])
    body = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", body, count=2)
    opening = f'<svg role="img" aria-label="{html.escape(title)}" style="aspect-ratio: {width:g} / {height:g}"'
    return body.replace("<svg", opening, 1)


def _figures_of_page(run: SavedResults, svgs: Mapping[str, str] | None) -> list[dict[str, str]]:
    from gradstats.report.figures import figures_as_svg, figures_of

    drawn = figures_as_svg(run) if svgs is None else svgs
    return [
        {
            "name": figure.name,
            "caption": caption,
            "svg": inline_svg(drawn[figure.name], figure.name, caption),
        }
        for figure in figures_of(run)
        if figure.name in drawn and (caption := figure.caption)
    ]


def _what_was_measured(run: SavedResults) -> list[tuple[str, str]]:
    manifest, settings = run.manifest, run.settings
    policy, mean_reward = manifest.get("policy") or {}, manifest.get("mean_reward")
    rows = [
        ("policy", policy.get("name") or settings.get("policy.name")),
        ("revision", policy.get("revision")),
        ("parameters", f"{policy['n_parameters']:,}" if policy.get("n_parameters") else None),
        ("dtype and device", ", ".join(str(policy[key]) for key in ("dtype", "device") if policy.get(key))),
        ("scored at temperature", policy.get("temperature")),
        ("problems", settings.get("prompts.source")),
        ("sampler", ", ".join(f"{key} {value}" for key, value in (manifest.get("sampler") or {}).items())),
        ("prompts", manifest.get("n_prompts")),
        ("completions", manifest.get("n_sequences")),
        ("cut off at the cap", manifest.get("n_truncated")),
        ("mean reward", None if mean_reward is None else f"{mean_reward:.3f}"),
        ("gradient engine", manifest.get("engine")),
        ("sampler against scorer", (manifest.get("sampler_gap") or {}).get("sentence")),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "")]


def _alpha(run: SavedResults) -> dict[str, str | bool] | None:
    if run.alpha is None:
        return None
    saved, within = run.alpha, run.alpha.get("within_prompt")
    r_squared = math.nan if saved["r_squared"] is None else saved["r_squared"]
    return {
        "level": f"{saved.get('confidence_level', CONFIDENCE_LEVEL):.0%}",
        "method": f"{saved['method']}, {saved['interval']} interval",
        # That it is what a group baseline uses goes without saying where it is the α of the run itself.
        "has_within": within is not None and saved["method"] != "within_prompt",
        "rest": f"n = {saved['n']} completions of {saved['n_prompts']} prompts, R² = {r_squared:.2f}",
    }


def _alpha_verdicts(run: SavedResults) -> list[str]:
    """Return what else is known of α, each in a line."""
    found = [] if run.alpha is None else alpha_verdicts(run.alpha)
    return [f"{one.text[:1].upper()}{one.text[1:]}." for one in found if one.topic != "α"]


def _commands(run: SavedResults) -> list[tuple[str, str]]:
    folder = shlex.quote(as_given(run.path))
    again = shlex.quote(f"{as_given(run.path)}-again")
    return [
        ("the whole run, from its own experiment file", f"gradstats run {folder}/experiment.yaml --out {again}"),
        ("figures and tables at another venue's width", f"gradstats export {folder} --venue neurips --column full"),
        ("this page", f"gradstats report {folder}"),
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
