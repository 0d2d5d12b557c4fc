"""What an analysis declares once: question, columns, table, figures, options, and what every run asks by itself."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from gradstats import estimators
from gradstats.analyses.numbers import percent
from gradstats.answers import Answer
from gradstats.answers.answer import ASKED
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.estimator import Weighting
from gradstats.measurement.measurement import NO_SKETCHES, metric_label
from gradstats.plots.names import group_size_of
from gradstats.stats.variance.quantities import NO_LIMITS, Limits, Place, filled_in, limits_of
from gradstats.system.lazy_imports import pd
from gradstats.system.user_code import errors_of_own_code

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment
    from gradstats.config.sections import VarianceSection
    from gradstats.measurement.measurement import Measurement
    from gradstats.stats.protocols import MeasuredGradients

#: The table of the completions of a run, a row each: prompt_id, length, sq_norm and, where known, reward, truncated.
POINTS = "length_scaling"
#: Entry of the ``.attrs`` of a table that is drawn: whether its rows are sorted by ``value``, or stand as ``listed``.
ORDER = "order"
#: Entry of what an answer is about: true where the sentence says all, and the rows add nothing to it.
SETTLED = "settled"
#: Entry of what an answer of a run is about: the estimators of the run that the question could take and leaves out.
LEFT_OUT = "left_out"
# What only holds at a level: intervals, bounds, and what is shown by them.
_OF_A_LEVEL = re.compile(r"\[|≥|≤|±|at most|\bshown\b|\bresolved?\b")
#: The places whose tables have a column that has a heading.
_PLACES: tuple[Place, ...] = ("paper", "page", "terminal")


@dataclass(frozen=True)
class Column:
    """One column of a table, as files and Python name it."""

    name: str
    meaning: str
    heading: str = ""  # in tables; "" for a column of files only
    estimated: bool = False  # whether its ends _low and _high stand beside it
    short: bool = False  # whether the result's repr and the first screen of the command show it
    limits: Limits = NO_LIMITS  # the least and the greatest possible value; an unbiased estimate may lie beyond
    file: str = ""  # that computes it, from the folder of the package; that of the analysis by default
    places: tuple[Place, ...] = _PLACES  # whose tables have it, where it has a heading
    sentence: Callable[[pd.DataFrame], str] = lambda frame: ""  # that captions of tables with it contain


def measurement(path: Path, *, partial: bool = False) -> Measurement:
    """A measurement folder or a run directory."""  # noqa: D401
    from gradstats.measurement.measurement import read_measurement

    return read_measurement(path, partial=partial)


def _first_cell(row: Mapping[str, Any]) -> str:
    return str(next(iter(row.values())))


@dataclass(frozen=True)
class AnalysisFigure:
    """A figure of an analysis."""

    name: str  # of its files
    caption: str | Callable[[pd.DataFrame], str]
    draw: Callable[..., Any]  # of a frame, on a figure of its own
    table: str = ""  # that it draws, where it is not that of the analysis
    rows: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda frame: frame  # that are drawn; None for no figure
    columns: tuple[Column, ...] = ()  # that its rows have and the table lacks

    def caption_of(self, frame: pd.DataFrame) -> str:
        """Return the caption of the figure of a frame."""
        return self.caption if isinstance(self.caption, str) else self.caption(frame)


@dataclass(frozen=True)
class Ranking:
    """How a short table, on a first screen and on the page, orders its rows, each of an estimator."""

    column: str  # what is judged
    most_first: bool = False
    #: Whether the rows of an estimator stay together and in order, as its bins do; the reference then comes first.
    in_blocks: bool = False
    #: The column of the scale of an estimator, or `ratio`, its square: those that differ by it alone share a row.
    scale: str = ""


class _Tabulated:
    """What the tables of files and of print share: columns and their headings."""

    name: str
    #: Where none of them has a heading there is no table: the sentence is the answer. A table may lack some.
    columns: tuple[Column, ...]
    #: How a short table orders its rows; without it they are those of the whole table, in their order.
    ranking: Ranking | None = None
    #: Changes the numbers that tables show, where they are not those of the files.
    display_frame: Callable[[pd.DataFrame], pd.DataFrame]

    def shown_in(self, place: Place) -> dict[str, str]:
        """Return the columns of a table in a place: name → heading, in which ``{reference}`` is not yet filled in."""
        return {one.name: one.heading for one in self.columns if one.heading and place in one.places}

    @property
    def known_by(self) -> list[str]:
        """The columns by which a file is known as one of its tables."""
        return [self.columns[0].name]

    def headings_of(self, frame: pd.DataFrame, place: Place = "paper") -> dict[str, str]:
        """Return the columns of a table: name → heading, without those that only other tables have."""
        known = {str(name).removesuffix("_low") for name in frame}
        declared = self.shown_in(place).items()
        return {name: filled_in(heading, frame.attrs) for name, heading in declared if name in known}

    def summary_columns(self, frame: pd.DataFrame) -> list[str]:
        """Return the headings of the columns of a first screen: the short ones, or all where none is short."""
        headings, short = self.headings_of(frame), {one.name for one in self.columns if one.short}
        return [heading for name, heading in headings.items() if name in short] or list(headings.values())

    def limits_of(self, name: str) -> Limits:
        """Return the least and the greatest value that a column can have."""
        declared = next((one.limits for one in self.columns if one.name == name), NO_LIMITS)
        return limits_of(name) if declared == NO_LIMITS else declared

    @property
    def label(self) -> str:
        """By which LaTeX refers to its table."""
        return f"tab:{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class FurtherTable(_Tabulated):
    """A table beside that of an answer: under a name of its own among the files of a run and in JSON."""

    name: str
    #: Returns its frame, of the result and a level; an empty one where there is nothing to tell.
    frame: Callable[..., pd.DataFrame]
    columns: tuple[Column, ...]
    row_name: Callable[[dict[str, Any]], str] = _first_cell
    row_heading: str | Callable[[pd.DataFrame], str] = ""
    caption: Callable[[pd.DataFrame], str] = lambda frame: ""
    ranking: Ranking | None = None
    display_frame: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame


@dataclass(frozen=True)
class Analysis(_Tabulated):
    """A question and everything that is shown of its answer; see docs/design.md and CONTRIBUTING.md."""

    #: In ``gradstats ask RUN NAME``, and of its files.
    name: str
    #: Answers it: takes a measurement first, and returns a result with ``to_frame(confidence_level)``.
    ask: Callable[..., Any]
    #: The arguments of ``ask`` that the command line takes, the positional ones first, and last those that few need.
    #: Their types and defaults are those of its signature and their help that of its docstring; what neither has is
    #: that of the section `variance`.
    options: Sequence[str]
    #: Where none of them has a heading there is no table: the sentence is the answer.
    columns: tuple[Column, ...]
    #: The name of a row in tables, from its cells; and the heading above these names.
    row_name: Callable[[dict[str, Any]], str] = _first_cell
    row_heading: str | Callable[[pd.DataFrame], str] = ""
    caption: Callable[[pd.DataFrame], str] = lambda frame: ""
    #: Reads what is asked from the path of the command line, and whether shards may be missing; a mapping that it
    #: returns holds several arguments of ``ask``. The first paragraph of its docstring is the help of that path.
    source: Callable[..., Any] = measurement
    #: Why a measurement cannot be asked, with the remedy, as far as what it holds tells; "" where nothing is missing.
    unavailable_because: Callable[[Measurement], str] = lambda measured: ""
    #: Why a run with these settings has no answer, whatever it draws, with the remedy; "" where it may have one.
    unanswerable_because: Callable[[Experiment, Mapping[str, Any]], str] = lambda experiment, settings: ""
    figures: tuple[AnalysisFigure, ...] = ()
    ranking: Ranking | None = None
    display_frame: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    further: tuple[FurtherTable, ...] = ()
    #: The arguments with which every run asks it, of a measurement and an experiment; None where the data are too few.
    #: A question without it is asked by a command, which adds the answer to the run where it has a figure.
    in_run: Callable[[Measurement, Experiment], dict[str, Any] | None] | None = None
    #: The section of an experiment file that holds its settings, where it has one of its own.
    section: str = ""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Ask."""
        return self.ask(*arguments, **options)

    def call_with_source(self, asked_of: Any, **options: Any) -> Any:
        """Ask of what ``source`` has read."""
        return self.ask(**asked_of, **options) if isinstance(asked_of, Mapping) else self.ask(asked_of, **options)

    @property
    def hints(self) -> dict[str, Any]:
        """The types of the arguments that the command line takes; only type checkers may know those of others.

        An array is named in words, as a generator is by its seed: its types, which need NumPy, are not asked for.
        """
        ask = inspect.unwrap(self.ask)
        taken = {
            name: hint.replace("npt.ArrayLike", "object") if isinstance(hint, str) else hint
            for name, hint in ask.__annotations__.items()
            if name in self.options
        }
        taken |= {"rng": int} if "rng" in taken else {}
        return typing.get_type_hints(
            SimpleNamespace(__annotations__=taken), getattr(ask, "__globals__", {}), include_extras=True
        )

    @property
    def asked_at_level(self) -> bool:
        """Whether the level of intervals is an argument of ``ask``, and so that of its answer."""
        return "confidence_level" in inspect.signature(self.ask).parameters

    def answer_of(
        self,
        found: Any,
        confidence_level: float,
        asked: Mapping[str, Any] | None = None,
        measured_in: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Return what was found as an answer, at a level, which is that of the result where it was asked at one.

        Args:
            found: what ``ask`` returned.
            confidence_level: of the intervals.
            asked: the options that it was asked with.
            measured_in: what the answer is about besides what its result states, as the metric of the measurement.
        """
        if self.asked_at_level:
            confidence_level = getattr(found, "confidence_level", confidence_level)
        levels = () if self.asked_at_level else (confidence_level,)
        frame = found.to_frame(*levels)
        sentence = found.sentence(*levels) if hasattr(found, "sentence") else ""
        given = dict(measured_in or {})
        about = {"confidence_level": confidence_level} | given | _without_notes(frame)
        about |= {ASKED: dict(asked)} if asked else {}
        about |= {SETTLED: True} if getattr(found, "is_settled", False) else {}
        beside = {one.name: one.frame(found, confidence_level) for one in self.further}
        further = {
            name: Answer(name, table, given | _without_notes(table)) for name, table in beside.items() if len(table)
        }
        notes = found.notes_at(confidence_level) if hasattr(found, "notes_at") else tuple(getattr(found, "notes", ()))
        return Answer(self.name, frame, about, _with_level(sentence, confidence_level), notes, further)

    @property
    def question(self) -> str:
        """The first line of the docstring of its file."""
        return (sys.modules[self.ask.__module__].__doc__ or self.name).strip().partition("\n")[0]

    @property
    def saved_by_command(self) -> bool:
        """Whether the command adds the answer to the run: one that no run has by itself, and that is drawn."""
        return self.in_run is None and any(not one.table for one in self.figures)

    @property
    def tables(self) -> tuple[Analysis | FurtherTable, ...]:
        """What declares each of its tables, its own first."""
        return (self, *self.further)

    def leading_of(self, answer: Answer) -> Analysis | FurtherTable | None:
        """Return the table of a first screen: one with rows that are ranked, or else its own; None without tables."""
        held = [one for one in self.tables if one is self or one.name in answer.further]
        shown = [one for one in held if one.shown_in("terminal")]
        return next((one for one in shown if one.ranking is not None), next(iter(shown), None))

    @property
    def file(self) -> str:
        """The file that computes its columns."""
        return f"{self.ask.__module__.partition('.')[2].replace('.', '/')}.py"

    @property
    def source_help(self) -> str:
        """What the path of the command line is."""
        text = " ".join((self.source.__doc__ or "").partition("\n\n")[0].split())
        return f"{text[:1].lower()}{text[1:]}"

    @property
    def settings(self) -> dict[str, str]:
        """What an experiment file may set: name → the argument of ``ask`` that it is."""
        return {"seed" if argument == "rng" else argument: argument for argument in self.options}

    def refuse_settings(self, settings: Mapping[str, Any], experiment: Experiment) -> None:
        """Refuse settings of an experiment file before anything is computed.

        Raises:
            ValueError: for one that there is not, one that is missing, or a value of another type; for a question
                that belongs elsewhere, reads something else than a measurement, or cannot be answered.
            KeyError: for an unknown estimator.
        """
        if self.section:
            raise ValueError(
                "this question cannot be listed in `analyses:`: every run answers it with the settings of its section "
                f"`{self.section}:`; change those"
            )
        if self.source is not measurement:
            raise ValueError(
                f"{dict(settings)!r} cannot be asked in a run, which asks its measurement, since the question reads "
                f"{self.source_help.rstrip('.')}: leave it out and ask `gradstats ask RUN {self.name}` of the finished "
                "run"
            )
        for name in settings:
            if name not in self.settings:
                near = difflib.get_close_matches(name, self.settings, 1)
                known = f"did you mean {near[0]}?" if near else f"it has {', '.join(self.settings) or 'none'}"
                raise ValueError(f"there is no setting {name!r}: {known}")
        if self.in_run is None:
            needed = [name for name in self.required if name in self.settings and name != "estimators"]
            missing = [name for name in needed if name not in settings]
            if missing:
                raise ValueError(f"{' and '.join(missing)} must be given")
        hints = self.hints
        for name, value in settings.items():
            reason = _reason_against(value, hints.get(self.settings[name], Any))
            if reason:
                raise ValueError(f"{name} is {value!r}: {reason}")
        self.estimators_in(settings)
        if reason := self.unanswerable_because(experiment, settings):
            raise ValueError(reason)

    @property
    def required(self) -> list[str]:
        """The arguments of ``ask`` that have no default."""
        return [name for name, one in inspect.signature(self.ask).parameters.items() if one.default is one.empty]

    def arguments_in_run(self, measured: Any, experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``ask`` and the level: those that settings give, and for the others a run's own."""
        of_section = {name: value for name, value in settings.items() if name in type(experiment.variance).model_fields}
        section = experiment.variance.model_copy(update=of_section)
        asked = {**experiment.analyses, self.name: dict(settings)}
        experiment = experiment.model_copy(update={"variance": section, "analyses": asked})
        if self.in_run is None:
            given = _shared(self, section, settings)
        else:
            given = dict(self.in_run(measured, experiment) or {})
        if "estimators" in self.required and not {"estimators"} & {*given, *settings}:
            given["estimators"] = group_level_estimators(measured, section)
        # A half-width is that of α; a plan for an estimator is one of its comparison.
        of_alpha = "half_width" in self.settings and settings.get("estimator") is None
        section = getattr(experiment, self.section or ("length_scaling" if of_alpha else "variance"))
        given.setdefault("confidence_level", section.confidence_level)
        return given | {self.settings[name]: value for name, value in settings.items()}

    def answered(
        self, asked_of: Any, arguments: Mapping[str, Any], settings: Mapping[str, Any], of_run: Sequence[str]
    ) -> tuple[Any, Answer]:
        """Ask of what ``source`` has read; return what was found, and the answer.

        Args:
            asked_of: a measurement, or what else ``source`` returns.
            arguments: as :meth:`arguments_in_run` returns them.
            settings: those that were given, which the answer states with all others that are not usual.
            of_run: the estimators of the run, some of which may not be taken where none are given.
        """
        taken = {name: value for name, value in arguments.items() if self.asked_at_level or name != "confidence_level"}
        with errors_of_own_code(self.ask, f"the question {self.name!r}"):
            found = self.call_with_source(asked_of, **taken)
        options = {option: taken[argument] for option, argument in self.settings.items() if argument in taken}
        asked = self.not_usual({**options, **settings}, without=() if "estimators" in settings else ("estimators",))
        asked |= {name: _as_text(value) for name, value in settings.items() if value is not None}
        measured: Mapping[str, Any] | None = getattr(asked_of, "metadata", None)
        about: dict[str, Any] = {} if measured is None else {"metric": metric_label(measured)}
        about |= {"params": measured["params"]} if measured and measured.get("params") else {}
        batch_level: list[str] = []
        if "estimators" in arguments and "estimators" not in settings:
            compared = {one.label for one in self.estimators_in({"estimators": arguments["estimators"]})}
            left_out = [one for one in map(estimators.get, of_run) if one.label not in compared]
            batch_level = [one.label for one in left_out if one.across_groups]
            others = [one.label for one in left_out if not one.across_groups]
            about |= {LEFT_OUT: others} if others else {}
        answer = self.answer_of(found, arguments["confidence_level"], {} if self.section else asked, about)
        if batch_level:
            said = "batch-level estimators are left out, since groups are looked at one by one here"
            answer = replace(answer, notes=(*answer.notes, f"{said}: {', '.join(batch_level)}"))
        return found, answer

    def answer_in_run(
        self, measured: Measurement, experiment: Experiment, settings: Mapping[str, Any]
    ) -> tuple[Any, Answer] | None:
        """Return what it finds in a run, with settings of its experiment file, and the answer; None for few data."""
        if self.in_run is not None and self.in_run(measured, experiment) is None:
            return None
        arguments = self.arguments_in_run(measured, experiment, settings)
        return self.answered(measured, arguments, settings, experiment.variance.estimators)

    def not_usual(self, options: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
        """Return options that differ from their defaults, as files hold them."""
        parameters = inspect.signature(self.ask).parameters
        found = {}
        for option, value in options.items():
            argument = self.settings.get(option, option)
            usual = parameters[argument].default if argument in parameters else _section_default(option)
            if option not in without and value is not None and not _equal(value, usual):
                found[option] = _as_text(value)
        return found

    def command_line(self, answer: Answer) -> list[str] | None:
        """Return the words by which the command line asks it again; None where the answer does not say them all."""
        asked = dict(answer.about.get(ASKED, {}))
        words: list[str] = []
        for option, argument in self.settings.items():
            value = asked.get(option)
            positional = argument in self.required
            if value is None:
                if positional and argument != "estimators":
                    return None
                continue
            listed = [f"{one:.15g}" if isinstance(one, float) else str(one) for one in _listed(value)]
            words += listed if positional or argument == "estimators" else [f"--{option.replace('_', '-')}", *listed]
        return words

    def file_name(self, options: Mapping[str, Any]) -> str:
        """Return the name of the files of an answer: that of the question, with the words that must be given.

        A question that needs none has one answer in a run, which another replaces.
        """
        needed = [name for name, argument in self.settings.items() if argument in self.required]
        # Of alpha=0:2:41 the parameter alone: another range replaces the curve.
        words = [
            re.sub(r"^(\w+)=.*", r"\1", str(options[name]))
            for name in needed
            if name != "estimators" and name in options
        ]
        slug = re.sub(r"[^a-z0-9]+", "_", " ".join([self.name, *words]).lower()).strip("_")
        return slug if words else self.name

    def estimators_in(self, arguments: Mapping[str, Any]) -> Sequence[Weighting]:
        """Return the estimators that arguments name; raises for an unknown label."""
        labels = [*_listed(arguments.get("estimators") or ()), arguments.get("reference")]
        found = [estimators.get(label) for label in labels if label]
        with suppress(TypeError):  # a parameter that the question itself gives
            found += [estimators.get(label) for label in filter(None, [arguments.get("estimator")])]
        return found


def _shared(analysis: Analysis, section: VarianceSection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a question that are those of the comparison of a run, where it does not set them."""
    if analysis.in_run is not None:
        return {}
    compared = ("reference", "target", "seed", "prompts_per_batch", "max_grad_norm", "n_resamples")
    names = [name for name in analysis.settings if name in compared and name not in settings]
    return {analysis.settings[name]: getattr(section, name) for name in names}


def _with_level(sentence: str, confidence_level: float) -> str:
    """Return a sentence that names the level of its intervals and bounds, where that is not the usual one."""
    level = percent(confidence_level)
    if confidence_level == CONFIDENCE_LEVEL or f"{level} interval" in sentence or not _OF_A_LEVEL.search(sentence):
        return sentence
    return f"{sentence.removesuffix('.')}; {level} intervals."


def _without_notes(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what the ``.attrs`` of a frame state besides the notes, which an answer has apart."""
    return {str(name): value for name, value in frame.attrs.items() if name != "notes"}


def _section_default(option: str) -> object:
    """Return the default of an option of the section ``variance``."""
    from gradstats.config.sections import VarianceSection

    field_of = VarianceSection.model_fields.get(option)
    return None if field_of is None else field_of.default


def _equal(value: Any, usual: object) -> bool:
    try:
        return bool(value == usual) or (isinstance(value, Sequence) and list(value) == list(usual))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return False


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _as_text(value: Any) -> Any:
    """Return the value of an option as files hold it: estimators by their labels."""
    if isinstance(value, (list, tuple)):
        return [_as_text(one) for one in value]
    if isinstance(value, (str, bool, int, float)):
        return value
    return getattr(value, "label", str(value))


def _reason_against(value: object, hint: Any) -> str:
    """Return why a value is not of a type; "" where it is, or where the type cannot be checked, as of an array."""
    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, strict=True)).validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"].replace("Input", "it")
    except (PydanticUserError, TypeError):
        return ""
    return ""


def chosen(columns: Iterable[Column], headings: Mapping[str, str], short: Collection[str] = ()) -> tuple[Column, ...]:
    """Return the columns of another question, of which tables show some, in another order or under other headings."""
    known = {one.name: one for one in columns}
    first = [
        replace(known[name], heading=heading, short=name in short, places=_PLACES) for name, heading in headings.items()
    ]
    others = [replace(one, heading="", short=False) for name, one in known.items() if name not in headings]
    return (*first, *others)


def level_of(frame: pd.DataFrame) -> str:
    """Return the level of a frame's intervals for a caption, where it states one, and a space."""
    return f"{percent(frame.attrs['confidence_level'])} " if "confidence_level" in frame.attrs else ""


def size_of_groups(frame: pd.DataFrame, before: str = " of ") -> str:
    """Return the group size of a frame for a caption, as in " of 4", where all rows have the same; "" elsewhere."""
    size = group_size_of(frame)
    return "" if size is None else f"{before}{size}"


def clipping_of(frame: pd.DataFrame) -> str:
    """Return the sentence of a caption on the norm that gradients were clipped to, where they were."""
    about = frame.attrs
    if about.get("max_grad_norm") is None:
        return ""
    return (
        f" Gradients of batches of {about['prompts_per_batch']} prompts are clipped to the norm "
        f"{about['max_grad_norm']:g}; ratios are to the reference without clipping."
    )


def group_level_estimators(
    measured: Measurement, section: VarianceSection, labels: Iterable[str] | None = None
) -> list[Weighting]:
    """Return the estimators, by default those of a run, that stay in their group and that the measurement allows."""
    from gradstats.stats.variance.inputs import reasons_against

    chosen = [estimators.get(label) for label in (section.estimators if labels is None else labels)]
    reasons = reasons_against(measured, chosen, section.target)
    pairs = zip(chosen, reasons, strict=True)
    return [one for one, reason in pairs if reason is None and not one.across_groups]


#: Why groups of completions cannot be asked about.
NO_GROUPS = (
    "a prompt has a single completion, and groups need two: sample more (sampling.group_size), or leave the prompt out"
)


def missing_sketches(measured: Measurement) -> str:
    """Return why inner products of gradients cannot be asked for; "" where they can."""
    return "" if measured.sketches is not None else NO_SKETCHES


def without_groups(measured: Measurement) -> str:
    """Return why groups of completions cannot be asked about; "" where they can."""
    return missing_sketches(measured) or ("" if most_completions(measured) > 1 else NO_GROUPS)


def measured_group_sizes(measured: Measurement | MeasuredGradients) -> list[int]:
    """Return the powers of two, from 2, up to the smallest number of completions of a prompt."""
    return powers_of_two(most_completions(measured))


def powers_of_two(most: int) -> list[int]:
    """Return the powers of two from 2 up to a number."""
    return [2**power for power in range(1, most.bit_length()) if 2**power <= most]


def most_completions(measured: Measurement | MeasuredGradients) -> int:
    """Return the number of completions that every prompt has at least."""
    return int(np.unique(measured.rollouts.prompt_id, return_counts=True)[1].min())
