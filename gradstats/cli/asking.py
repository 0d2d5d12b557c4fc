"""The command ``ask``: every question of a run, with the options that its analysis declares."""

from __future__ import annotations

import inspect
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import tyro
from docstring_parser import parse

from gradstats.cli import terminal
from gradstats.cli.options import (
    SEVERAL,
    Advanced,
    All,
    AsJson,
    Level,
    Notes,
    Overwrite,
    Partial,
    Positional,
    Several,
    Trust,
    described_by,
    run_command,
    without_markup,
)
from gradstats.cli.statistics import code_of_run, save_result, save_table
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.sections import VarianceSection
from gradstats.system.files import to_json

if TYPE_CHECKING:
    from gradstats.analyses.declaration import Analysis
    from gradstats.answers import Answer
    from gradstats.estimators.estimator import Weighting
    from gradstats.measurement.measurement import Measurement


#: As many options of a question help shows first: those after them are for the end of the screen.
_FIRST = 9


def ask(words: Sequence[str]) -> None:
    """Ask a question of a run: ``gradstats ask RUN QUESTION …``; alone it lists the questions.

    Args:
        words: a run directory or a measurement folder, a question, and the options of the question.

    Raises:
        KeyError: for an unknown question.
        ValueError: for a question without a run, or before it.
    """
    from gradstats.analyses import registry

    helped = any(word in ("-h", "--help") for word in words)
    named = [word for word in words[:2] if word == "-" or not word.startswith("-")]
    about_question = len(named) == 1 and (named[0] in registry.names() or _is_label(named[0]))
    if about_question and not helped:
        raise ValueError(f"name a run first: gradstats ask RUN {named[0]}")
    if not about_question and len(named) < 2:
        _list_questions(registry.questions(), Path(named[0]) if named and not helped else None)
        return
    source, name = ("", named[0]) if about_question else named
    if source in registry.names() and name not in registry.names() and Path(name).exists():
        raise ValueError(f"the run comes first: gradstats ask {name} {source}")
    trust = "--trust" in words
    with code_of_run(Path(source), trust) if source else nullcontext():
        analysis = registry.get(name)
        given = ["--help"] if helped else [source, *words[2:]]
        run_command(_command(analysis, name), f"gradstats ask RUN {name}", given)


def _is_label(word: str) -> bool:
    return ":" in word and "/" not in word.rpartition(":")[2]


def _list_questions(questions: Mapping[str, str], source: Path | None) -> None:
    """Print the questions; of a run first those that it can answer, then the names of the others."""
    refused = [] if source is None or source.is_file() else _refused(source)
    width = max(map(len, questions))
    lines = [f"gradstats ask {source or 'RUN'} QUESTION …   of a run directory or a measurement folder:", ""]

    for name, question in questions.items():
        if name not in refused:
            before = f"  {name:<{width}}  "
            lines.extend(textwrap.wrap(question, 80, initial_indent=before, subsequent_indent=" " * len(before)))
    if refused:
        lines += textwrap.wrap(
            f"not of this run (asked one by one they say why): {', '.join(refused)}", 80, subsequent_indent="  "
        )
    lines += ["", "gradstats ask QUESTION --help shows its options; yours: ask RUN module:question"]
    terminal.show(lines)


def _refused(source: Path) -> list[str]:
    """Return the names of the questions that a measurement cannot answer."""
    from gradstats.analyses import registry
    from gradstats.measurement.measurement import read_measurement

    with warnings.catch_warnings():  # of shards that are missing, which answers speak of
        warnings.simplefilter("ignore")
        measured = read_measurement(source, partial=True)
    return [analysis.name for analysis in registry.every() if analysis.lacking(measured)]


def plan(words: Sequence[str]) -> None:
    """Ask how many prompts are needed: ``gradstats plan [PILOT] …``; without a pilot from what is known of α.

    Args:
        words: a CSV file, a measurement folder or a run directory, and the options of the question.
    """
    from gradstats.analyses import registry

    analysis = registry.get("plan")
    asked = _parameters(analysis)
    about_time = "load the policy of a run directory and time a trial of each step, for the hours."
    options: list[tuple[str, Any, Any]] = [
        ("pilot", Annotated[Positional[_or_none(Path)], tyro.conf.arg(help=analysis.source_help)], None),
        *((option, hint, default) for option, (hint, default, _) in asked.items()),
        ("dry_run", Annotated[bool, tyro.conf.arg(help=about_time)], False),
        ("confidence_level", Level, CONFIDENCE_LEVEL),
        ("everything", All, False),
        ("notes", Notes, False),
        ("as_json", AsJson, False),
        ("partial", Partial, False),
        ("trust", Trust, False),
    ]
    command = _with_options("plan", analysis.question, options, lambda given: _plan(analysis, asked, given))
    run_command(command, "gradstats plan", words)


def _plan(analysis: Analysis, asked: Mapping[str, tuple[Any, Any, str]], given: dict[str, Any]) -> None:
    pilot: Path | None = given["pilot"]
    arguments = {name: given[name] for name in (*asked, "confidence_level")}
    with code_of_run(pilot, given["trust"]):
        analysis.estimators_in(arguments)
        answer = analysis(**({} if pilot is None else analysis.source(pilot, partial=given["partial"])), **arguments)
        if given["dry_run"]:
            from gradstats.config.experiment import load_experiment
            from gradstats.runs.cost import estimate_cost

            if pilot is None or not (pilot / "experiment.yaml").exists():
                raise ValueError(f"--dry-run needs a run directory with an experiment.yaml, and {pilot} is not one")
            answer = answer.at_speed(estimate_cost(load_experiment(str(pilot / "experiment.yaml"))))
    if given["as_json"]:
        print(to_json(answer.to_frame().to_dict("records")[0]))
        return
    from gradstats.cli.answers import answer_screen

    first, *notes = answer.sentences()
    with_notes = given["notes"] or given["everything"]
    terminal.show(answer_screen(first, closing=terminal.more(len(notes), with_notes, everything=True)))
    if with_notes:
        terminal.show_notes(notes)


def _command(analysis: Analysis, name: str) -> Callable[..., None]:
    """Return the function whose signature are the options of a question."""
    asked = _parameters(analysis)
    about_out = "also write the table as CSV."
    if analysis.kept:
        about_out = "folder for table and figure; the run directory by default, none for a bare measurement."
    out = Annotated[_or_none(Path), tyro.conf.arg(help=about_out)]
    options: list[tuple[str, Any, Any]] = [
        ("source", Annotated[Positional[Path], tyro.conf.arg(help=analysis.source_help)], inspect.Parameter.empty),
        *((option, hint, default) for option, (hint, default, _) in asked.items()),
        ("confidence_level", Level, CONFIDENCE_LEVEL),
        ("everything", All, False),
        ("notes", Notes, False),
        ("out", out, None),
        ("partial", Partial, False),
        ("trust", Trust, False),
        ("overwrite", Overwrite, False),
        ("as_json", AsJson, False),
    ]
    return _with_options(name, analysis.question, options, lambda given: _answer(analysis, name, asked, given))


def _with_options(
    name: str, question: str, options: Sequence[tuple[str, Any, Any]], answer: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """Return a function of a name whose signature are options: name, type and default."""

    def command(**given: Any) -> None:
        answer(given)

    command.__doc__ = question
    command.__name__ = name
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(option, keyword, annotation=hint, default=default) for option, hint, default in options
    ]
    for one in (command, inspect.unwrap(command)):  # tyro unwraps a function that a decorator checks the types of
        one.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        one.__annotations__ = {option: hint for option, hint, _ in options}
    return command


def _parameters(analysis: Analysis) -> dict[str, tuple[Any, Any, str]]:
    """Return the options of a question: name → what words it takes, its default, the argument that it is."""
    signature = inspect.signature(analysis.ask).parameters
    hints = analysis.hints
    helps = {one.arg_name: one.description or "" for one in parse(analysis.ask.__doc__ or "").params}
    found: dict[str, tuple[Any, Any, str]] = {}
    for place, argument in enumerate(analysis.options):
        option = "seed" if argument == "rng" else argument
        of_section = option in VarianceSection.model_fields
        known = argument in signature
        text = without_markup(helps.get(argument, ""))
        if of_section and (argument == "rng" or not text or text.startswith("as ")):
            annotation: Any = described_by(VarianceSection, option)
        else:
            annotation = tyro.conf.arg(help=text)
        hint = hints[argument] if known else VarianceSection.model_fields[option].annotation
        default = signature[argument].default if known else VarianceSection.model_fields[option].default
        hint = _in_words(hint)
        if hint is Several:
            annotation = tyro.conf.arg(
                help=text, metavar="[ESTIMATOR ...]", help_behavior_hint="(default: those of the run)"
            )
        if hint in (Several, str) and default is inspect.Parameter.empty:
            hint = Positional[hint]
        if hint == Positional[str]:  # the word stands alone on the help screen and where it is missing
            annotation = tyro.conf.arg(help=text, metavar=option.upper())
        if isinstance(hint, type) and issubclass(hint, Several):  # which has a default
            words: Any = default or ()
            default = hint(words)
        if place >= _FIRST or (of_section and option not in VarianceSection.fields_that("often set")):
            hint = Advanced[hint]
        found[option] = (Annotated[hint, annotation], default, argument)
    return found


def _in_words(hint: Any) -> Any:
    """Return the type that words of the command line have, for an argument of a question."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    # Bounds of settings, as of a count, are checked where these are used.
    members = tuple(typing.get_args(one)[0] if typing.get_origin(one) is Annotated else one for one in members)
    optional = type(None) in members
    for one in (float,) if float in members else members:
        if one in (int, float, str, bool) or typing.get_origin(one) is Literal:
            return _or_none(one) if optional else one
        if typing.get_origin(one) is Sequence or getattr(typing.get_origin(one), "__name__", "") == "Sequence":
            (inner,) = typing.get_args(one)
            return SEVERAL[_in_words(inner)]
    return _or_none(str) if optional else str  # an array: the name of a column of the rollouts


def _or_none(hint: Any) -> Any:
    """Return the type that may be None; of ``X | None`` tyro checks the default with typeguard, slow to import."""
    return Optional[hint]  # noqa: UP045


def _answer(analysis: Analysis, label: str, asked: Mapping[str, tuple[Any, Any, str]], given: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {}
    for option, (_, default, argument) in asked.items():
        value = given[option]
        if value == () and default is inspect.Parameter.empty and argument != "estimators":
            raise ValueError(f"name one or more {argument}: gradstats ask {label} --help says which there are")
        arguments[argument] = None if value == () else value
    level, as_json, out, overwrite = (given[name] for name in ("confidence_level", "as_json", "out", "overwrite"))
    if analysis.asked_at_level:
        arguments["confidence_level"] = level
    analysis.estimators_in(arguments)  # unknown labels are refused before the imports
    from gradstats.measurement.measurement import metric_label
    from gradstats.report.saved_results import claim_addition
    from gradstats.runs.analysis import claim_table, folder_of_results

    options = {option: given[option] for option in asked}
    name = analysis.file_name(options)
    if not analysis.kept:
        claim_table(out, analysis.known_by)
    keeping = folder_of_results(given["source"], out, partial=given["partial"]) if analysis.kept else nullcontext()
    with keeping as folder:
        if folder is not None:
            claim_addition(folder, name, analysis.known_by)
        asked_of = analysis.source(given["source"], partial=given["partial"])
        if arguments.get("estimators", ()) is None:
            arguments["estimators"] = _estimators_of(given["source"], asked_of)
        with warnings.catch_warnings():  # its notes say the same, and more
            warnings.simplefilter("ignore")
            found = analysis.of_source(asked_of, **_with_columns(analysis, asked_of, arguments))
        usual = analysis.not_usual({option: None if value == () else value for option, value in options.items()})
        metric = {"metric": metric_label(asked_of.metadata)} if hasattr(asked_of, "metadata") else {}
        answer = replace(analysis.answer_of(found, level, usual, metric), question=label)
        _show(analysis, asked_of, answer, found, given)
        if folder is not None:
            named = analysis.estimators_in(arguments | {"estimator": getattr(found, "estimator", None)})
            without = replace(asked_of, values=None, fitted_values=None)
            uses_values = any("values" in one.needs for one in named) or bool(analysis.lacking(without))
            save_result(answer, folder, name, overwrite, uses_values, quiet=as_json)
    if not analysis.kept:
        save_table(out, answer.frame, overwrite, quiet=as_json)


def _estimators_of(source: Path, measured: Measurement) -> list[Weighting]:
    """Return the estimators of a run, or the usual ones for a bare measurement, that stay within their group."""
    from gradstats.analyses.declaration import within_groups
    from gradstats.report.saved_results import is_run_directory, read_recorded_experiment

    in_run = is_run_directory(source)
    section = read_recorded_experiment(source / "experiment.yaml").variance if in_run else VarianceSection()
    return within_groups(measured, section)


def _with_columns(analysis: Analysis, asked_of: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the columns of the rollouts that some of them name."""
    hints = analysis.hints
    filled = dict(arguments)
    for name, value in arguments.items():
        is_array = name in hints and _in_words(hints[name]) == _or_none(str)
        if isinstance(value, str) and is_array and str not in typing.get_args(hints[name])[:1]:
            frame = asked_of.rollouts.frame
            if value not in frame:
                raise ValueError(f"--{name} {value}: the rollouts have no such column, only {', '.join(frame)}")
            filled[name] = frame[value].to_numpy(dtype=float)
    return filled


def _show(analysis: Analysis, asked_of: Any, answer: Answer, found: Any, given: Mapping[str, Any]) -> None:
    """Print the sentence that answers and a short table, with the rest on request, or all of it as JSON.

    What a command of its own answers is shown as that command does.
    """
    from gradstats.analyses.declaration import SETTLED
    from gradstats.cli.answers import answer_screen
    from gradstats.report.analysis_tables import short_table, table_of
    from gradstats.report.verdict import headline_of

    tables = {analysis.name: answer.frame} | {name: one.frame for name, one in answer.further.items()}
    said = list(filter(None, [answer.sentence])) + (found.sentences() if hasattr(found, "sentences") else [])
    if given["as_json"]:
        rows = {"rows" if name == analysis.name else name: one.to_dict("records") for name, one in tables.items()}
        if analysis.kept and said:
            print(to_json(dict(answer.about) | {"sentence": answer.sentence, "notes": list(answer.notes)} | rows))
        else:
            print(to_json({**rows, "notes": [*said, *answer.notes]}))
        return
    # What qualifies the first sentence is read with the notes.
    first, *others = dict.fromkeys(said or [analysis.question])
    notes = [*others, *answer.notes]
    everything, with_notes, source = given["everything"], given["notes"], str(given["source"])
    if analysis.section == "length_scaling":
        terminal.show_alpha(found, source, everything, with_notes)
        return
    if analysis.section == "variance":
        headline = headline_of(source, asked_of.rollouts)
        terminal.show_comparison(found, answer.frame, headline, notes, everything, with_notes)
        return
    declared, leading = [one for one in analysis.tables if one.shown_in("terminal")], analysis.leading_of(answer)
    closing = terminal.more(len(notes), with_notes, everything or not declared)
    answers = None if leading is None else tables.get(leading.name)
    settled = everything or answer.about.get(SETTLED) or answers is None or not len(answers)
    short = None if settled or leading is None or answers is None else short_table(leading, answers)
    terminal.show(answer_screen(first, short, closing))
    for one in declared if everything else ():
        if one.name in tables and len(tables[one.name]):
            terminal.show_table(table_of(one, tables[one.name], "terminal", in_words=False))
    if with_notes:
        terminal.show_notes(notes)
    sys.stdout.flush()
