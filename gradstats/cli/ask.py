"""Every question is asked here, with the options that its analysis declares: ``gradstats ask RUN QUESTION …``."""

from __future__ import annotations

import inspect
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, make_dataclass, replace
from itertools import takewhile
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
    QuestionOptions,
    Several,
    Trust,
    code_of_run,
    described_by,
    run_command,
    without_markup,
)
from gradstats.config.options import CONFIDENCE_LEVEL, Count
from gradstats.config.sections import VarianceSection
from gradstats.config.validation import naming
from gradstats.system.user_code import errors_of_own_code

if TYPE_CHECKING:
    from gradstats.analyses.declaration import Analysis
    from gradstats.answers import Answer
    from gradstats.config.experiment import Experiment


#: As many options of a question help shows first: those after them are for the end of the screen.
_FIRST = 9
#: Options that take labels of estimators.
_OF_LABELS = ("estimators", "estimator", "reference")
#: Options that state the same in two ways: one that is given replaces the other of the run.
_INSTEAD = {"prompts": "tokens", "tokens": "prompts"}
#: The question whose answer may state hours, which takes the policy of a run.
_TIMED = "plan"


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
    about_question = len(named) == 1 and (_is_label(named[0]) or registry.is_known(named[0]))
    if about_question and not helped:
        raise ValueError(f"name a run first: gradstats ask RUN {named[0]}")
    if not about_question and len(named) < 2:
        _list_questions(registry.questions(), Path(named[0]) if named and not helped else None)
        return
    source, name = ("", named[0]) if about_question else named
    if registry.is_known(source) and not registry.is_known(name) and Path(name).exists():
        raise ValueError(f"the run comes first: gradstats ask {name} {source}")
    if name in registry.OF_LOGS and name not in registry.ANALYSES:
        raise ValueError(f"{name} is asked of a log: gradstats log {source or 'FILE'}")
    with code_of_run(Path(source) if source else None, "--trust" in words):
        ask_question(name, ["--help"] if helped else [source, *words[2:]], f"gradstats ask RUN {name}")


def ask_question(label: str, words: Sequence[str], prog: str = "") -> None:
    """Ask a question by its name, or a user's own by ``module:question``, with the words of its options."""
    from gradstats.analyses import registry

    analysis = registry.get(label)
    _refuse_loose_estimators(analysis, words)
    of_run = _experiment_of(Path(words[0])).analyses.get(label) if words and words[0][:1] not in ("", "-") else None
    asked = of_run if isinstance(of_run, Mapping) else {}
    given = vars(run_command(options_of(analysis, asked), prog or f"gradstats {label}", words))
    named = {word[2:].partition("=")[0].replace("-", "_").removeprefix("no_") for word in words if word[:2] == "--"}
    named |= {option for option, argument in analysis.settings.items() if argument in analysis.required}
    with code_of_run(given["source"], given["trust"]), errors_of_own_code(analysis.ask, f"the question {label!r}"):
        _answer(analysis, label, given, {option: given[option] for option in given if option in named})


def _refuse_loose_estimators(analysis: Analysis, words: Sequence[str]) -> None:
    """Refuse estimators that follow the run, where a question takes them by ``--estimators``."""
    loose = [*takewhile(lambda word: not word.startswith("-"), words[1:])]
    if loose and "estimators" in analysis.settings and not {"estimators"} & {*analysis.required}:
        option = f"--estimators {' '.join(loose)}"
        with naming(option):
            analysis.estimators_in({"estimators": loose})
        raise ValueError(f"estimators go after --estimators: {option}")


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
    return [analysis.name for analysis in registry.all_analyses() if analysis.unavailable_because(measured)]


def options_of(analysis: Analysis, of_run: Mapping[str, Any]) -> type[QuestionOptions]:
    """Return the class whose fields are the options of a question: its own, and those that every question has.

    What must be given, but for estimators, is by default as the run has asked.
    """
    (path, *_) = inspect.signature(analysis.source).parameters.values()
    source = Path if path.default is path.empty else _or_none(Path)
    out = "a folder for table and figure, or the file of the table, NAME.csv"
    out += "; the run directory by default, none for a bare measurement." if analysis.saved_by_command else "."
    rows: list[tuple[str, Any, Any]] = [
        ("source", Annotated[Positional[source], tyro.conf.arg(help=analysis.source_help)], path.default),
        *_own_options(analysis, of_run),
        ("confidence_level", Level, CONFIDENCE_LEVEL),
        ("everything", All, False),
        ("notes", Notes, False),
        ("out", Annotated[_or_none(Path), tyro.conf.arg(help=out)], None),
        ("partial", Partial, False),
        ("trust", Trust, False),
        ("overwrite", Overwrite, False),
        ("as_json", AsJson, False),
    ]
    if analysis.name == _TIMED:
        about = "load the policy of a run directory and time a trial of each step, for the hours."
        rows.append(("dry_run", Advanced[Annotated[bool, tyro.conf.arg(help=about)]], False))
    fields = [
        (name, hint, field() if default is inspect.Parameter.empty else field(default=default))
        for name, hint, default in rows
    ]
    text = f"{analysis.question}\n\nOf a run, what is not given here is as its experiment says."
    return make_dataclass(analysis.name, fields, bases=(QuestionOptions,), namespace={"__doc__": text}, kw_only=True)


def _own_options(analysis: Analysis, of_run: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the options that a question declares: name, what words it takes, and its default."""
    signature, hints = inspect.signature(analysis.ask).parameters, analysis.hints
    helps = {one.arg_name: one.description or "" for one in parse(analysis.ask.__doc__ or "").params}
    for place, (option, argument) in enumerate(analysis.settings.items()):
        of_section, text = VarianceSection.model_fields.get(option), without_markup(helps.get(argument, ""))
        if argument in signature:
            hint, default = _in_words(hints[argument]), signature[argument].default
        else:
            assert of_section is not None, option
            hint, default = _in_words(of_section.annotation), of_section.default
        if option in _OF_LABELS:
            text = (
                text if text and not text.startswith("as ") else VarianceSection.model_fields[option].description or ""
            )
            text = f"{text.removesuffix('.')}; gradstats list estimators shows them."
        about: Any = tyro.conf.arg(help=text)
        if of_section is not None and (argument == "rng" or not text or text.startswith("as ")):
            about = described_by(VarianceSection, option)
        if hint is Several:
            by_default = "(default: those of the run)"
            about = tyro.conf.arg(help=text, metavar="[ESTIMATOR ...]", help_behavior_hint=by_default)
        elif hint is str and default is inspect.Parameter.empty:
            # The word stands alone on the help screen and where it is missing.
            about = tyro.conf.arg(help=text, metavar=option.upper())
        if default is inspect.Parameter.empty:
            default = default if hint is Several else of_run.get(option, default)
            hint = Positional[hint] if hint in (Several, str) else hint
        elif isinstance(hint, type) and issubclass(hint, Several):
            words: Any = default or ()
            default = hint(words)
        if place >= _FIRST or (of_section is not None and option not in VarianceSection.fields_that("often set")):
            hint = Advanced[hint]
        yield option, Annotated[hint, about], default


def _in_words(hint: Any) -> Any:
    """Return the type that words of the command line have, for an argument of a question."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    # Bounds of settings, as of a count, are checked where these are used.
    members = tuple(typing.get_args(one)[0] if typing.get_origin(one) is Annotated else one for one in members)
    optional = type(None) in members
    sequences = [one for one in members if getattr(typing.get_origin(one), "__name__", "") == "Sequence"]
    if int in members and Sequence[int] in sequences:
        return Union[None, Count, list[Count]]  # noqa: UP007 - None first, which tyro knows without typeguard
    for one in (float,) if float in members else members:
        if one in (int, float, str, bool) or typing.get_origin(one) is Literal:
            return _or_none(one) if optional else one
        if one in sequences:
            (inner,) = typing.get_args(one)
            return SEVERAL[_in_words(inner)]
    return _or_none(str) if optional else str  # an array: the name of a column of the rollouts


def _or_none(hint: Any) -> Any:
    """Return the type that may be None; of ``X | None`` tyro checks the default with typeguard, slow to import."""
    return Optional[hint]  # noqa: UP045


def _answer(analysis: Analysis, label: str, given: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Answer a question, print the answer, and write it where it belongs.

    Args:
        analysis: the question.
        label: what it was called.
        given: all options.
        named: those that stand in the words; for the others a run has settings of its own.
    """
    source: Path | None = given["source"]
    settings = {
        option: list(value) if isinstance(value, tuple) else value
        for option, value in named.items()
        if option in analysis.settings and value != ()
    }
    for option, argument in analysis.settings.items():
        if named.get(option) == () and argument != "estimators":
            raise ValueError(f"name one or more {argument}: gradstats ask {label} --help says which there are")
    for option in filter(settings.get, _OF_LABELS):  # unknown labels are refused before the imports
        try:
            analysis.estimators_in({option: settings[option]})
        except (KeyError, TypeError, ValueError) as error:
            dashes = "" if analysis.settings[option] in analysis.required else "--"
            raise ValueError(f"{dashes}{option}: {error.args[0]}") from error
    experiment = _experiment_of(source)
    of_run = experiment.analyses.get(label)
    if isinstance(of_run, Mapping) and analysis.file_name({**of_run, **settings}) == analysis.file_name(of_run):
        settings = {name: value for name, value in of_run.items() if _INSTEAD.get(name) not in settings} | settings
    with _saving(analysis, analysis.file_name(settings), given) as save:
        asked_of = analysis.source(*filter(None, [source]), partial=given["partial"])
        measured = asked_of.get("measured") if isinstance(asked_of, Mapping) else asked_of
        arguments = analysis.arguments_in_run(measured, experiment, settings)
        if "confidence_level" in named:
            arguments["confidence_level"] = named["confidence_level"]
        with warnings.catch_warnings():  # its notes say the same, and more
            warnings.simplefilter("ignore")
            found, answer = analysis.answered(
                asked_of, _with_columns(analysis, measured, arguments), settings, experiment.variance.estimators
            )
        if given.get("dry_run"):
            found = found.with_throughput(_cost_of(source))
            answer = replace(analysis.answer_of(found, arguments["confidence_level"]), about=answer.about)
        # What qualifies the first sentence is read with the notes.
        said = found.sentences() if hasattr(found, "sentences") else ()
        said = [one for one in said if not answer.sentence.startswith(one.removesuffix("."))]
        answer = replace(answer, question=label, notes=tuple(dict.fromkeys([*said, *answer.notes])))
        try:
            if given["as_json"]:
                terminal.print_answer(answer, analysis)
            else:
                _show(analysis, answer, found, measured, given)
            sys.stdout.flush()
        finally:  # also where what reads the screen ends early
            paths = save(answer, _uses_values(analysis, found, measured, arguments))
    if paths and not given["as_json"]:
        drawn = next((path for path in paths if path.suffix not in (".csv", ".json")), paths[0])
        terminal.show([f"  → {drawn}"])


def _experiment_of(source: Path | None) -> Experiment:
    """Return the settings of a run; of anything else those that an experiment has by default."""
    from gradstats.config.experiment import Experiment
    from gradstats.report.saved_results import is_run_directory, read_recorded_experiment

    if source is not None and is_run_directory(source):
        return read_recorded_experiment(source / "experiment.yaml")
    return Experiment.model_validate({"name": "none", "policy": {"name": "none"}, "prompts": {"source": "none"}})


@contextmanager
def _saving(analysis: Analysis, name: str, given: Mapping[str, Any]) -> Iterator[Callable[[Answer, bool], list[Path]]]:
    """Yield what writes an answer to where it belongs, if anywhere, and refuse a place of others before the work.

    ``--out NAME.csv`` is a file, with NAME.json beside it; any other path is a folder of tables and figures. What a
    command adds to a run goes there by default.
    """
    source, out, overwrite = given["source"], given["out"], given["overwrite"]
    if out is None and not analysis.saved_by_command:
        yield lambda answer, uses_values: []
        return
    from gradstats.answers.answer import claim_answer
    from gradstats.report.added_results import save_addition
    from gradstats.report.saved_results import claim_addition, folder_of_results, refuse_inside_run, writing_into

    if out is not None and (out.suffix == ".csv" or not analysis.saved_by_command):
        refuse_inside_run(out)
    if out is not None and out.suffix == ".csv":
        claim_answer(out.with_suffix(""), analysis.known_by)
        with writing_into(out):
            yield lambda answer, _: replace(answer, further={}).save(out.with_suffix(""), overwrite=overwrite)
        return
    with folder_of_results(source or Path(), out, partial=given["partial"]) as folder:
        if folder is None:
            yield lambda answer, uses_values: []
            return
        claim_addition(folder, name, analysis.known_by)
        yield lambda answer, uses_values: save_addition(
            answer, folder, name, overwrite=overwrite, uses_values=uses_values
        )


def _uses_values(analysis: Analysis, found: Any, measured: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether an answer rests on state values: where estimators need them, or the question does."""
    named = analysis.estimators_in({**arguments, "estimator": getattr(found, "estimator", None)})
    if any("values" in one.needs for one in named):
        return True
    return hasattr(measured, "values") and bool(
        analysis.unavailable_because(replace(measured, values=None, fitted_values=None))
    )


def _cost_of(run: Path | None) -> Any:
    """Return what a dry run of a pilot takes, for the hours of a plan."""
    from gradstats.config.experiment import load_experiment
    from gradstats.runs.cost import estimate_cost

    if run is None or not (run / "experiment.yaml").exists():
        raise ValueError(f"--dry-run needs a run directory with an experiment.yaml, and {run} is not one")
    return estimate_cost(load_experiment(str(run / "experiment.yaml")))


def _with_columns(analysis: Analysis, asked_of: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
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


def _show(analysis: Analysis, answer: Answer, found: Any, measured: Any, given: Mapping[str, Any]) -> None:
    """Print what answers: verdicts on α or on estimators, or else a sentence and a short table; the rest on request."""
    from gradstats.analyses import registry
    from gradstats.analyses.declaration import SETTLED
    from gradstats.analyses.numbers import percent
    from gradstats.cli.answers import answer_screen, first_screen
    from gradstats.report.analysis_tables import short_table
    from gradstats.report.verdict import alpha_verdicts, headline, headline_of, verdicts, with_plans, without_signal

    everything, with_notes, source = given["everything"], given["notes"], str(given["source"])
    frames = {analysis.name: answer.frame} | {name: one.frame for name, one in answer.further.items()}
    tables = [one for one in analysis.tables if one.shown_in("terminal") and len(frames.get(one.name, ()))]
    if analysis.section == "length_scaling" and found.by_block is not None:
        tables.append(registry.get("alpha_by_block"))
        frames["alpha_by_block"] = found.by_block
    level = answer.about["confidence_level"]
    said = [one.caption(frames[one.name]) for one in tables] if everything else []
    said += [] if analysis.section else [answer.sentence]
    levels = {} if any(f"{percent(level)} interval" in text for text in said) else {"": level}
    closing = terminal.hidden_content_hint(len(answer.notes), with_notes, everything or not tables, levels)
    if analysis.section == "length_scaling":
        opening = headline(
            source, found.fit.n_prompts, found.fit.n, lengths=found.fit.lengths, params=answer.about.get("params")
        )
        lines = first_screen(opening, alpha_verdicts(answer.about), closing=closing)
    elif analysis.section == "variance":
        compared = with_plans(answer, found)
        rollouts = measured.rollouts
        completions = rollouts.frame.assign(truncated=rollouts.truncated)
        said = [*without_signal(completions, source), *verdicts(None, compared)]
        lines = first_screen(headline_of(source, rollouts, answer.about.get("params")), said, compared, closing)
    else:
        leading, settled = analysis.leading_of(answer), everything or answer.about.get(SETTLED)
        short = None
        if leading is not None and leading in tables and not settled:
            short = short_table(leading, frames[leading.name])
        lines = answer_screen(answer.sentence or analysis.question, short, closing)
    terminal.show(lines)
    for one in tables if everything else ():
        terminal.show_answer_table(one, frames[one.name])
    if with_notes:
        terminal.show_notes(answer.notes)
    sys.stdout.flush()
