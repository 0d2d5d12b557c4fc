"""A run directory → one self-contained HTML page; and the parts of a page that the gallery of runs shares."""

from __future__ import annotations

import html
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from gradstats.analyses import registry
from gradstats.analyses.declaration import SETTLED, Analysis, FurtherTable
from gradstats.analyses.numbers import Triple
from gradstats.answers import Answer
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.display_names import distinct_names
from gradstats.plots.names import LABELS
from gradstats.report.analysis_tables import frame_in_words, short_table, table_of
from gradstats.report.glossary import TERMS, meaning_of
from gradstats.report.latex import unbroken
from gradstats.report.prompts_on_page import prompts_on_page
from gradstats.report.run_tables import level_of
from gradstats.report.saved_results import SavedResults, read_results, refuse_inside_run, writing_into
from gradstats.report.tables import Table
from gradstats.report.verdict import (
    LOG,
    Verdict,
    headline,
    left_out,
    log_verdicts,
    sentence_of,
    verdicts,
    what_is_open,
    without_signal,
)
from gradstats.system.files import atomic_path, to_json
from gradstats.system.outputs import REPORT, claim, is_marked, refuse_links

if TYPE_CHECKING:
    from markupsafe import Markup


def rendered(template: str, **shown: object) -> str:
    """Return a template of this package filled in; all text is escaped, and an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gradstats.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"interval_kept": interval_kept, "breakable": breakable}
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


class ColumnOnPage(TypedDict):
    """A column: its heading, what it means, and the file that defines it, from the root of the repository."""

    heading: str
    meaning: str
    file: str


class RowOnPage(TypedDict):
    """A row: its name, the label that files and commands use, and of each cell its text with what sorts it."""

    name: str
    label: str
    cells: list[tuple[str, str]]


class TableOnPage(TypedDict):
    """A table whose columns sort, that of the names of its rows first."""

    columns: list[ColumnOnPage]
    rows: list[RowOnPage]


def table_on_page(
    table: Table, defined: Callable[[str], tuple[str, str]] = lambda name: ("", ""), labels: Sequence[object] = ()
) -> TableOnPage:
    """Return a table for the page.

    Args:
        table: the table.
        defined: returns what a column of a name means, and the file that computes it.
        labels: of the rows, where they are called otherwise.
    """
    headings, texts = table.cells("plain")[0], table.cells("html")[1]
    columns = [ColumnOnPage(heading=headings[0], meaning=TERMS.get(headings[0], ""), file="")]
    for name, heading in zip(table.names or table.columns, headings[1:], strict=True):
        meaning, file = defined(name)
        columns.append({"heading": heading, "meaning": meaning, "file": file})
    keys = zip(*(map(_sort_key, cells) for cells in table.columns.values()), strict=True)
    rows = zip(table.rows, labels or table.rows, texts, keys, strict=True)
    return {
        "columns": columns,
        "rows": [
            {
                "name": name,
                "label": str(label),
                "cells": list(zip(cells[1:], keys_of_row, strict=True)),
            }
            for name, label, cells, keys_of_row in rows
        ],
    }


def _sort_key(cell: Triple | str) -> str:
    """Return what sorts a cell: its number or, where that is not known, the lower end; of a best set "yes" is first."""
    if isinstance(cell, str):
        return {"yes": "0", "no": "1"}.get(cell, "")
    key = next(filter(math.isfinite, cell[:2]), math.nan)
    return repr(float(key)) if math.isfinite(key) else ""


def _in_words_of(text: str, names: Mapping[str, str]) -> str:
    """Return a sentence in which the labels of some estimators are replaced by their names.

    >>> _in_words_of("group_mean and my_group_mean(loo=True)", {"group_mean": "group mean"})
    'group mean and my_group_mean(loo=True)'
    """
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    labels = re.compile(rf"(?<![\w:.=])(?:{'|'.join(map(re.escape, longest_first))})(?![\w(]|:\w)")
    return labels.sub(lambda found: names[found[0]], text)


def breakable(name: str) -> Markup:
    """Return a name, escaped, that a narrow column may break where its words and parameters end.

    A value in words stays on the line of its parameter: the spaces of ``α = 0.8`` do not break.
    """
    from markupsafe import Markup

    return Markup(re.sub(r"([_(,]|=(?!\u00a0))", r"\1<wbr>", html.escape(unbroken(name))))


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
        claim(target, REPORT)
        page = report_page(read_results(path), svgs)
        claim(target, REPORT)  # drawing takes seconds
        return write_page(page, target)


def write_page_of_run(path: Path, svgs: Mapping[str, str] | None = None) -> Path:
    """Write ``report.html`` into a run directory, whose lock the caller holds; otherwise as :func:`write_report`."""
    claim(path / "report.html", REPORT)
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
    questions = questions_on_page(run, drawn)
    shared = shared_notes(question["notes"] for question in questions)
    for question in questions:
        question["notes"] = [one for one in question["notes"] if one not in shared]
    shown = {name for question in questions for name in question["figures"]}
    not_read = [Verdict("open", one) for one in run.left_out]
    return rendered(
        "report.html.j2",
        name=_log_of(run).get("source", run.name),
        description=run.settings.get("description", ""),
        headline=_headline(run),
        verdicts=[*_verdicts(run), *left_out(run.manifest.get("remarks", [])), *not_read],
        questions=questions,
        measured=_what_was_measured(run),
        shared_notes=shared,
        here=not run.path.is_absolute(),
        most_rows=MOST_OPEN_ROWS,
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
    question: str
    asked: str  # of what, where the run recorded it; in the heading where a question was asked more than once
    answer: str  # "" where the run did not record it
    figures: list[str]
    n_open: int  # of the figures; the others are folded
    headings: list[str]  # of the short table, which is open
    rows: list[list[str]]
    table: TableOnPage | None  # with all rows and columns
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
_MOST_OPEN = 6
#: Rows of a section's table that are open; a longer table is folded below them.
MOST_OPEN_ROWS = 8
# A longer answer goes through the rows of its table, and is read with the notes.
_LONGEST_ANSWER = 400
# Letters of a name that no line of the page shortens.
_WHOLE_NAME = 1000


def questions_on_page(run: SavedResults, drawn: Collection[str] = ()) -> list[QuestionOnPage]:
    """Return a section for each answer of the run, in the order of the questions; α and estimators always have one.

    The first figure of each is open, up to six of them.

    Args:
        run: the run.
        drawn: names of its figures.
    """
    every = () if _log_of(run) else registry.OF_EVERY_RUN
    answers: dict[str, Answer | None] = dict.fromkeys(every) | dict(run.answers)
    found = [
        _question(run, name, declared, answer, drawn)
        for name, answer in answers.items()
        if isinstance(declared := registry.of_answer(name if answer is None else answer.question), Analysis)
    ]
    for one in [one for one in found if one["figures"]][:_MOST_OPEN]:
        one["n_open"] = 1
    times = Counter(one["question"] for one in found)
    for one in found:
        if times[one["question"]] > 1 and one["asked"]:
            one["question"] += f" ({one['asked']})"
    return found


def _question(
    run: SavedResults, name: str, analysis: Analysis, answer: Answer | None, drawn: Collection[str]
) -> QuestionOnPage:
    own_figures = dict.fromkeys([*(figure.name for figure in analysis.figures), name])
    found: QuestionOnPage = {
        "id": name,
        "question": analysis.question,
        "asked": "",
        "answer": "The data allow no answer; the remarks below say why.",
        "figures": [one for one in own_figures if one in drawn],
        "n_open": 0,
        "headings": [],
        "rows": [],
        "table": None,
        "caption": "",
        "notes": [],
        "command": _command(run, analysis, answer),
    }
    if answer is None:
        return found
    names = _names_of(run, answer)
    said = _in_words_of(sentence_of(answer, lambda label: names.get(label, label)), names)
    is_long = len(said) > _LONGEST_ANSWER
    found["answer"] = "" if is_long else said
    of_what = takewhile(lambda word: not word.startswith("--"), analysis.command_line(answer) or [])
    found["asked"] = _in_words_of(" ".join(of_what), names)
    notes = [*answer.about.get("sentences", ()), *answer.notes]
    found["notes"] = ([said] if is_long else []) + [_in_words_of(one, names) for one in notes]
    declared = analysis.leading_of(answer)
    leading = answer if declared is analysis else answer.further.get("" if declared is None else declared.name)
    if declared is not None and leading is not None and len(leading.frame) and not answer.about.get(SETTLED):
        frame = leading.frame.copy()
        frame.attrs |= {LABELS: run.figure_style.labels}
        short = short_table(declared, frame_in_words(frame), table_of(declared, frame))
        whole = table_of(_ranked_first(declared), frame, "page")
        found["caption"] = whole.full_caption
        if short.headings:
            found["headings"], found["rows"] = short.cells(_WHOLE_NAME)
        if len(whole.columns) > len(short.headings) or len(whole.rows) > min(len(short.rows), MOST_OPEN_ROWS):
            shown = declared.display_frame(frame)
            labels = list(shown["estimator"]) if "estimator" in shown else []
            found["table"] = table_on_page(whole, lambda column: _defined(analysis, declared, column), labels)
    return found


def _ranked_first(declared: Analysis | FurtherTable) -> Analysis | FurtherTable:
    """Return a declaration whose first columns are what ranks the rows, beside their names on a narrow screen."""
    if declared.ranking is None:
        return declared
    judged = declared.ranking.column
    ranked = sorted(declared.columns, key=lambda one: (not one.name.startswith(judged), one.name != "in_best_set"))
    return replace(declared, columns=tuple(ranked))


def _defined(analysis: Analysis, declared: Analysis | FurtherTable, name: str) -> tuple[str, str]:
    """Return what a column means, in the words of the glossary where it has any, and the file that computes it."""
    column = next(one for one in declared.columns if one.name == name)
    return meaning_of(name, column.meaning), f"gradstats/{column.file or analysis.file}"


def _names_of(run: SavedResults, answer: Answer) -> dict[str, str]:
    """Return the name in words of each estimator that an answer, or what was asked, mentions."""
    mentioned = [answer.about[key] for key in ("curve", "reference") if key in answer.about]
    if "estimator" in answer.frame:
        mentioned += answer.frame["estimator"].tolist()
    return distinct_names(dict.fromkeys(map(str, mentioned)), run.figure_style.labels)


def _command(run: SavedResults, analysis: Analysis, answer: Answer | None) -> str:
    """Return the command that gives this answer again; "" where it needs arguments that the answer does not state."""
    words = [] if answer is None else analysis.command_line(answer)
    if words is None or (answer is not None and LOG in answer.about):
        return ""
    level = CONFIDENCE_LEVEL if answer is None else level_of(answer)
    of_run = run.level_of_alpha if analysis.section == "length_scaling" else run.confidence_level
    # A run's own settings and level are what is not given.
    at_level = [] if level == of_run == CONFIDENCE_LEVEL else ["--confidence-level", f"{level:g}"]
    if analysis.section:
        return shlex.join(["gradstats", analysis.name, _as_given(run.path), *at_level])
    label = analysis.name if answer is None else answer.question
    return shlex.join(["gradstats", "ask", _as_given(run.path), label, *words, *at_level])


def _as_given(path: Path) -> str:
    """Return what commands on the page call a run: its path as it was given, which is seen from where that was.

    Of a path without a name, as ``.``, the folder in full.
    """
    return str(path if path.name else path.resolve())


def _log_of(run: SavedResults) -> Mapping[str, Any]:
    """Return what the answers to a trainer's log are about; nothing for a run."""
    return next((answer.about for answer in run.answers.values() if LOG in answer.about), {})


def _headline(run: SavedResults) -> str:
    """Return the line above the verdicts, below the name of the run; "" where it recorded no completions."""
    points = run.points
    if points is None:
        return str(_log_of(run).get(LOG, ""))
    return headline(
        "",
        len(set(points["prompt_id"])),
        len(points),
        rewards=points["reward"].to_numpy() if "reward" in points else None,
        lengths=points["length"].to_numpy(),
        n_truncated=int(points["truncated"].to_numpy().sum()) if "truncated" in points else 0,
        params=run.settings.get("measurement.params"),
    ).strip()


def _verdicts(run: SavedResults) -> list[Verdict]:
    """Return the verdicts with which the terminal begins as well, with estimators named in words."""
    if _log_of(run):
        return log_verdicts(run.answers)
    comparison = run.answers.get("variance")
    names = {} if comparison is None else _names_of(run, comparison)

    def naming(label: str) -> str:
        return names.get(label, label)

    found = verdicts(
        run.answers.get("alpha"),
        comparison,
        naming,
        blocks=run.answers.get("alpha_by_block"),
        batch_sizes=run.answers.get("batch_size"),
        allocation=run.answers.get("allocation"),
    )
    if run.points is not None and "reward" in run.points:
        found = [*without_signal(run.points, _as_given(run.path)), *found]
    open_ones = [] if comparison is None else what_is_open(comparison, naming)
    return [*found, *(Verdict("open", f"{text[:1].upper()}{text[1:]}.") for text in open_ones)]


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
        ("log", _log_of(run).get("source")),
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


def _commands(run: SavedResults) -> list[tuple[str, str]]:
    folder = shlex.quote(_as_given(run.path))
    again = shlex.quote(f"{_as_given(run.path)}-again")
    if command := _log_of(run).get("command"):
        return [("the answers again", str(command)), ("this page", f"gradstats report {folder}")]
    return [
        ("the whole run, from its own experiment file", f"gradstats run {folder}/experiment.yaml --out {again}"),
        ("figures and tables at another venue's width", f"gradstats export {folder} --venue neurips --column full"),
        ("this page", f"gradstats report {folder}"),
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
