"""Sections as options of a command: ``--group-size 4``, ``--reward a b=0.5``, ``--template-options k=v``."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import filterfalse, takewhile
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_type_hints

import tyro
from docstring_parser import parse
from pydantic_core import PydanticUndefined
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from gradstats.config.options import (
    BlockNames,
    DisplayNames,
    ExecutorName,
    FreeOptions,
    GroupSizes,
    RewardNames,
    WeightType,
    read_display_names,
)
from gradstats.config.sections import ExecutionSection, PolicySection, PromptsSection, VarianceSection
from gradstats.config.validation import Section
from gradstats.system.files import refuse_missing_model
from gradstats.system.user_code import MissingModuleError, UserCodeError, code_beside

Positional = tyro.conf.Positional

Declared = TypeVar("Declared")

#: A section, or another class, whose fields are options of the command itself: ``--group-size``, not
#: ``--settings.group-size``.
OptionsOf = Annotated[Declared, tyro.conf.arg(name="")]

_ADVANCED = "advanced"

#: An option that most people never need, which help shows at its end; of a section all fields but those often set.
Advanced = Annotated[Declared, _ADVANCED]

#: Settings as words: ``name=value …``.
SettingWords = Sequence[str]

REGISTRY = ConstructorRegistry()


class Several(tuple[Any, ...]):
    """Positional words or those behind one option; of a plain class, which tyro checks without importing typeguard."""

    kind: ClassVar[type] = str


class Integers(Several):
    """Whole numbers."""

    kind = int


class Numbers(Several):
    """Numbers."""

    kind = float


#: What each kind of word is read as, where there are several.
SEVERAL = {one.kind: one for one in (Several, Integers, Numbers)}


def described_by(section: type[Section], field: str, by_default: str | None = None) -> object:
    """Annotate an option that a command declares by itself with the help and the default of a section's field.

    Args:
        section: the section.
        field: the field.
        by_default: what the command does without the option, where that is not what the section says.
    """
    declared = section.model_fields[field]
    help_text = declared.description or ""
    if by_default is not None:
        return tyro.conf.arg(
            help=f"{help_text.partition(';')[0].removesuffix('.')}.", help_behavior_hint=f"(default: {by_default})"
        )
    if declared.is_required() or declared.default is None or declared.default is PydanticUndefined:
        return tyro.conf.arg(help=help_text)
    # None then stands for an option that was not given, which leaves the section's default.
    return tyro.conf.arg(help=help_text, help_behavior_hint=f"(default: {declared.default})")


def _settings_of(section: type[Section], example: str) -> object:
    """Annotate an option that takes the fields of a section as words."""
    return tyro.conf.arg(help=f"settings of {section.title} as NAME=VALUE, for example {example}.")


def one_or_more(what: str) -> object:
    """Annotate a list of positional words, of which a command refuses an empty one itself."""
    return tyro.conf.arg(metavar=f"{what} [{what} ...]", help_behavior_hint="(one or more)")


# Options that several commands share.
PolicyName = Annotated[str, described_by(PolicySection, "name")]
PolicyDtype = Annotated[WeightType | None, described_by(PolicySection, "dtype")]
PolicyDevice = Annotated[str | None, described_by(PolicySection, "device")]
PolicyTemperature = Annotated[float | None, described_by(PolicySection, "temperature")]
PromptSource = Annotated[str, described_by(PromptsSection, "source")]
PromptCount = Annotated[int | None, described_by(PromptsSection, "n")]
AsJson = Annotated[
    bool, tyro.conf.arg(name="json", help="print JSON, with null for what is not known, and inf and -inf as texts.")
]
All = Annotated[
    bool, tyro.conf.arg(name="all", help="print every row and column, folded to the width of the terminal.")
]
Notes = Annotated[bool, tyro.conf.arg(help="print the notes: what qualifies the numbers.")]
PolicySettings = Advanced[
    Annotated[SettingWords, _settings_of(PolicySection, "temperature=0.6 revision=main adapter=./lora")]
]
PromptSettings = Advanced[Annotated[SettingWords, described_by(PromptsSection, "settings")]]
Level = Advanced[Annotated[float, described_by(VarianceSection, "confidence_level")]]
Progress = Advanced[Annotated[bool, tyro.conf.arg(help="show progress bars.")]]
Partial = Advanced[
    Annotated[bool, tyro.conf.arg(help="use the existing shards although others that the run planned are missing.")]
]
Trust = Advanced[
    Annotated[
        bool, tyro.conf.arg(help="search for modules in the folder that the run records as its experiment file's.")
    ]
]
Overwrite = Advanced[
    Annotated[bool, tyro.conf.arg(help="replace a finished result obtained with other settings at --out.")]
]


@dataclass(frozen=True)
class Execution:
    """Where the work of a run is done; None for what its experiment says."""

    executor: Annotated[ExecutorName | None, described_by(ExecutionSection, "executor")] = None
    workers: Annotated[int | None, described_by(ExecutionSection, "workers")] = None
    gpus_per_worker: Annotated[int | None, described_by(ExecutionSection, "gpus_per_worker")] = None
    ranks_per_worker: Annotated[int | None, described_by(ExecutionSection, "ranks_per_worker")] = None
    threads: Annotated[int | None, described_by(ExecutionSection, "threads")] = None
    address: Annotated[str | None, described_by(ExecutionSection, "address")] = None
    trust: Annotated[
        bool,
        tyro.conf.arg(
            help="run code that a run directory's own experiment.yaml names, also from the folder that the run records "
            "as its experiment file's, and model code or pickles that a file allows."
        ),
    ] = False


def with_execution(overrides: SettingWords, **options: object) -> SettingWords:
    """Return words of ``--set`` with those of the options of the execution that were given.

    Args:
        overrides: the words of ``--set``.
        **options: the options; None where they were not given.
    """
    from gradstats.config.experiment import as_yaml

    given = [f"execution.{name}={as_yaml(value)}" for name, value in options.items() if value is not None]
    return (*overrides, *given)


def _read_settings(words: SettingWords) -> dict[str, Any]:
    from gradstats.config.experiment import with_settings  # help needs no YAML

    return with_settings({}, words)


def prompts_section(source: str, n: int | None, seed: int, settings: SettingWords) -> PromptsSection:
    """Return the problems of a command.

    Args:
        source: where they come from.
        n: their number.
        seed: seed of the subset or of the generator.
        settings: words of ``--prompt-settings``.
    """
    return PromptsSection(source=source, n=n, seed=seed, settings=_read_settings(settings))


def policy_section(name: str, settings: SettingWords, **options: object) -> PolicySection:
    """Return the policy of a command.

    Args:
        name: the policy.
        settings: words of ``--policy-settings``.
        **options: the same settings given by separate options; None where they were not given.

    Raises:
        FileNotFoundError: when the name is a path where nothing lies.
        ValueError: when a setting is given in both ways, or is invalid.
    """
    given = {key: value for key, value in options.items() if value is not None}
    written = _read_settings(settings)
    for key in given.keys() & written.keys():
        raise ValueError(f"{key} is given both by --{key} and by --policy-settings: give it once")
    fields: dict[str, Any] = {"name": name, **written, **given}
    refuse_missing_model(name)
    return PolicySection(**fields)


class QuestionOptions:
    """The options of a question: the base of dataclasses whose fields are made from its declaration."""


@contextmanager
def code_of_run(source: Path | None, trust: bool) -> Iterator[None]:
    """Search the folder of a run's experiment file for modules as well, while the context is open.

    The run records where that folder is. A run may come from someone else, who may have recorded any folder: it is
    searched only with permission.

    Args:
        source: a run directory; for anything else nothing is added.
        trust: search the recorded folder.

    Raises:
        UserCodeError: for a module that is not found, with the recorded folder where there is one.
    """
    with code_beside(_recorded_folder(source)) if trust else nullcontext():
        try:
            yield
        except MissingModuleError as error:
            folder = None if trust else _recorded_folder(source)
            if folder is None:
                raise
            raise UserCodeError(
                f"{error}; the experiment file of {source} was in {folder}: add --trust to search there as well"
            ) from error


def _recorded_folder(source: Path | None) -> Path | None:
    from gradstats.report.saved_results import experiment_folder

    return None if source is None else experiment_folder(source)


def run_command(command: Callable[..., Any], prog: str, words: Sequence[str]) -> Any:
    """Run a command with the words of its options, or return the options of a question.

    What help says of it is folded to the width of a screen.

    Raises:
        ValueError: for settings of an experiment that do not follow --set, or an option that is given twice.
    """
    words = _given_once(words)
    positional = [*takewhile(lambda word: not word.startswith("-"), words)]
    loose = [word for word in positional[1:] if "=" in word]  # the first names a file
    if loose and "overrides" in inspect.signature(command).parameters:
        raise ValueError(f"settings of the experiment go after --set: --set {' '.join(loose)}")
    paragraphs = (parse(command.__doc__ or "").description or "").split("\n\n")
    # tyro joins lines, but for those that begin with a space.
    about = "\n\n".join(textwrap.fill(without_markup(one), 80, subsequent_indent="  ") for one in paragraphs)
    return tyro.cli(command, prog=prog, description=about, args=words, registry=REGISTRY)


def _given_once(words: Sequence[str]) -> list[str]:
    """Return words in which no option stands twice, of which tyro would read the last alone; NAME=VALUE are joined.

    >>> _given_once(["run", "--set", "prompts.n=4", "--notes", "--set", "sampling.seed=1"])
    ['run', '--set', 'prompts.n=4', 'sampling.seed=1', '--notes']
    """
    entries: list[list[str]] = [[]]
    for word in words:
        option, _, setting = word.partition("=")
        if option.startswith("--"):
            entries.append([option, setting] if "=" in setting else [word])
        else:
            entries[-1].append(word)
    found: dict[str, list[str]] = {}
    for entry in entries[1:]:
        option = entry[0].partition("=")[0].replace("_", "-")
        first = found.setdefault(option, entry)
        if first is entry or first == entry:
            continue
        if not all(re.match(r"[\w.]+=", word) for word in (*first[1:], *entry[1:])) or "=" in first[0] + entry[0]:
            raise ValueError(f"{option} is given twice, as {' '.join(first)!r} and {' '.join(entry)!r}: give it once")
        first.extend(entry[1:])
    return [*entries[0], *(word for entry in found.values() for word in entry)]


def without_markup(text: str) -> str:
    """Return a text of a docstring as help shows it.

    >>> without_markup("see :func:`gradstats.compare`, and ``gradstats list``")
    'see gradstats.compare, and gradstats list'
    """
    return re.sub(r":[a-z]+:|`", "", " ".join(text.split()))


class _Group(dict[str, Any]):
    """What was given for the advanced options of a command or section."""

    options: ClassVar[tuple[StructFieldSpec, ...]]


@REGISTRY.struct_rule
def _in_two_groups(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Return the options of a command, question or section, with the advanced ones in a group at the end of help."""
    target: Any = info.type
    if inspect.isclass(target) and issubclass(target, _Group):
        return StructConstructorSpec(target, target.options)
    if inspect.isfunction(target) or (inspect.isclass(target) and issubclass(target, QuestionOptions)):
        options = list(_options_of_command(target))
    elif inspect.isclass(target) and issubclass(target, Section):
        options = list(_options_of_section(target))
    else:
        return None
    group = type("_AdvancedGroup", (_Group,), {"options": tuple(filter(_is_advanced, options))})

    def make(advanced: _Group, **given: Any) -> Any:
        return target(**given, **advanced)

    make.__doc__ = target.__doc__  # what help says of the command
    # Its name is the heading in the help, "advanced options", and the empty text is what stands below that.
    last = StructFieldSpec(_ADVANCED, tyro.conf.OmitArgPrefixes[group], tyro.MISSING_NONPROP, helptext="")
    return StructConstructorSpec(make, (*filterfalse(_is_advanced, options), last))


def _is_advanced(option: StructFieldSpec) -> bool:
    return _ADVANCED in getattr(option.type, "__metadata__", ())


def _options_of_command(command: Callable[..., Any]) -> Iterator[StructFieldSpec]:
    hints = get_type_hints(command, include_extras=True)
    helps = {one.arg_name: without_markup(one.description or "") for one in parse(command.__doc__ or "").params}
    for name, parameter in inspect.signature(command).parameters.items():
        default = tyro.MISSING_NONPROP if parameter.default is parameter.empty else parameter.default
        yield StructFieldSpec(name, hints[name], default, helps.get(name))


def _options_of_section(section: type[Section]) -> Iterator[StructFieldSpec]:
    hints = get_type_hints(section, include_extras=True)
    for name, field in section.model_fields.items():
        hint = hints[name] if name in section.fields_that("often set") else Advanced[hints[name]]
        yield StructFieldSpec(name, hint, field.get_default(call_default_factory=True), field.description)


@REGISTRY.primitive_rule
def _or_nothing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how to parse a type that may be None: help shows PATH, where tyro would show {None}|PATH."""
    members = get_args(info.type) if info.type_origin in (Union, types.UnionType) else ()
    if type(None) not in members:
        return None
    given: Any = Union[tuple(one for one in members if one is not type(None))]  # noqa: UP007
    of_given = PrimitiveTypeInfo.make(given, info.markers)
    spec = ConstructorRegistry.get_primitive_spec(of_given)
    if not isinstance(spec, PrimitiveConstructorSpec) or spec.nargs not in (1, "*"):
        return None
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        choices=None if spec.choices is None else (*spec.choices, "None"),
    )


@REGISTRY.primitive_rule
def _words(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how to parse a type that is given as several words on the command line."""
    if isinstance(info.type, type) and issubclass(info.type, Several):
        several = info.type
        name = several.kind.__name__.upper()
        return _spec(f"{name} [{name} ...]", lambda words: several(map(several.kind, words)), several, list)
    for type_, spec in (
        (FreeOptions, _spec("NAME=VALUE ...", _read_settings, dict, _as_words)),
        (DisplayNames, _spec("LABEL=NAME ...", read_display_names, dict, _as_words)),
        (SettingWords, _spec("NAME=VALUE ...", tuple, tuple, lambda value: [*value] or ["none"])),
        (RewardNames, _spec("NAME|NAME=WEIGHT ...", lambda words: words or None, (list, NoneType), _listed)),
        (GroupSizes, _spec("INT ...", _group_sizes, (int, list, NoneType), _listed)),
        (BlockNames, replace(_spec("", lambda words: words[0], str, _listed), nargs=1, metavar="STR")),
    ):
        if info.type == type_:
            return spec
    return None


def _spec(
    metavar: str, parse: Callable[[list[str]], Any], kind: type | tuple[type, ...], words: Callable[[Any], list[Any]]
) -> PrimitiveConstructorSpec[Any]:
    """Return how several words are parsed as a kind of value, and which words give a value."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{metavar}]",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: list(map(str, words(value))),
    )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_words(pairs: Mapping[str, object]) -> list[str]:
    """Return the words with which such pairs are given: ``NAME=VALUE``, or ``none``."""
    return [f"{key}={entry}" for key, entry in pairs.items()] or ["none"]


def _group_sizes(words: list[str]) -> int | list[int] | None:
    """Parse one size, several, or None for all completions of a prompt."""
    if words in ([], ["None"]):
        return None
    try:
        sizes = [int(word) for word in words]
    except ValueError:
        wrong = " ".join(words)
        raise ValueError(f"{wrong!r} must be one integer, several, or None for all completions of a prompt") from None
    return sizes[0] if len(sizes) == 1 else sizes
