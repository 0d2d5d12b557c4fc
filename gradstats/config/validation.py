"""Sections that report each invalid setting in one sentence, with the remedy that its declaration gives."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

Function = TypeVar("Function", bound=Callable[..., Any])
Declared = TypeVar("Declared", bound="Section")

_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


@dataclass(frozen=True)
class WrongSetting:
    """One setting that is unknown, missing, or has a value that its declaration does not allow."""

    path: tuple[str, ...]  # where it stands, such as ("sampling", "group_size")
    fault: str
    unknown: bool = False

    def sentence(self, owner: str) -> str:
        """Return the whole sentence; ``owner`` is what an unknown setting at the top level is missing from."""
        return f"{'.'.join(self.path[:-1] if self.unknown else self.path) or owner} {self.fault}"


class WrongSettingsError(ValueError):
    """A section was given wrong settings; the message holds one sentence for each."""

    def __init__(self, wrong: list[WrongSetting], owner: str) -> None:
        super().__init__("; ".join(setting.sentence(owner) for setting in wrong))
        self.wrong = wrong


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Begin the error of whatever refuses a value with the setting that the value is of."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise ValueError(f"{setting}: {error.args[0]}") from error


def nearest_or_all(name: str, known: Collection[str], otherwise: str) -> str:
    """Return the known name that a wrong one most likely stands for, or else all of them, in words."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(known)}"


#: What a setting decides: the words of the third argument of :func:`setting`, of which the first is one of these.
DECIDED = ("samples", "measurements", "values", "answers", "nothing")
#: The words that may follow, from which every list of settings elsewhere is made.
EFFECTS = {
    "often set": "by most people: help shows it before the others",
    "no argument": "of the function whose options the section declares",
    "of the question": "that is asked: runs are told apart by it",
    "grows": "a run can be extended to a larger value",
    "regraded": "stored completions can be scored again under another value",
    "divides": "only the work: a later call may have another value, and agrees up to rounding",
    "unstated": "in the digest by which shards know their run",
    "reshapes": "the distribution of tokens, unless it has its default: runs are told apart by it as well",
    "truncates": "that distribution: some of what the policy can draw is never drawn",
    "recorded": "in the metadata of a measurement by its name, as it was given",
    "shared": "measurements are joined only where their metadata agree on it",
}


def setting(default: Any, description: str, effect: str, *, validate_default: bool | None = None) -> Any:
    """Declare a field of a section: its default (``...`` for none, or what makes one), its help, and what it decides.

    The effect begins with one of :data:`DECIDED`, followed by any of :data:`EFFECTS`.

    >>> class Drawing(Section):
    ...     top_p: float = setting(1.0, "nucleus mass; 1 keeps every token.", "samples, reshapes, truncates")
    >>> Drawing.fields_that("truncates")
    ('top_p',)
    """
    given: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    field = Field(description=description, validate_default=validate_default, **given)
    field.metadata.append(_Effect(effect))
    return field


class _Effect(tuple[str, ...]):
    """What a setting decides, in words."""

    def __new__(cls, text: str) -> _Effect:
        decided, *others = text.split(", ")
        if decided not in DECIDED or not EFFECTS.keys() >= {*others}:
            raise ValueError(f"the effect is {text!r}: give {', '.join(DECIDED)}, then any of {', '.join(EFFECTS)}")
        return super().__new__(cls, (decided, *others))


class Section(BaseModel):
    """A set of options: each field declares, by :func:`setting`, type, range, default, help and effect of one option.

    Raises:
        WrongSettingsError: for settings that are unknown, missing, of a wrong type or out of range.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=(), use_attribute_docstrings=False
    )

    #: The name of the section in a sentence.
    title: ClassVar[str] = "the section"

    def __init__(self, **settings: Any) -> None:
        settings = {name: _plain(value) for name, value in settings.items()}
        try:
            super().__init__(**settings)
        except ValidationError as error:
            wrong = list(dict.fromkeys(type(self)._wrong(error.errors(), settings)))
            raise WrongSettingsError(wrong, self.title) from error

    def arguments(self, **changes: object) -> dict[str, Any]:
        """Return the section as keyword arguments of the function whose options it declares."""
        settings = self.model_dump()
        return {argument: settings[name] for name, argument in self.argument_names().items()} | changes

    @classmethod
    def argument_names(cls) -> dict[str, str]:
        """Return field → what the function calls it, of the fields that are its arguments."""
        others = set(cls.fields_that("no argument"))
        return {name: "rng" if name == "seed" else name for name in cls.model_fields if name not in others}

    @classmethod
    def of_arguments(cls: type[Declared], given: Mapping[str, Any], **others: Any) -> Declared:
        """Return the section of the ``**settings`` of a function that :func:`takes` it; a mapping may be None.

        Raises:
            TypeError: for a name that is not an argument of the function.
        """
        known = cls.argument_names().values()
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.title} takes no argument {name!r}: {nearest_or_all(name, known, 'it takes')}")
        makes = {name for name, field in cls.model_fields.items() if field.default_factory}
        return cls(**{name: one for name, one in given.items() if one is not None or name not in makes}, **others)

    @classmethod
    def effect(cls, name: str) -> tuple[str, ...]:
        """Return what a field decides, in the words of its declaration.

        Raises:
            TypeError: where the field does not declare it.
        """
        for declared in cls.model_fields[name].metadata:
            if isinstance(declared, _Effect):
                return declared
        raise TypeError(f"{cls.__name__}.{name} does not declare what it decides: write it as setting(…)")

    @classmethod
    def fields_that(cls, *effects: str) -> tuple[str, ...]:
        """Return the fields with one of several effects, in order, as ``SamplingSection.fields_that("truncates")``."""
        return tuple(name for name in cls.model_fields if not {*effects}.isdisjoint(cls.effect(name)))

    @classmethod
    def _wrong(cls, errors: list[ErrorDetails], settings: Mapping[str, object]) -> Iterator[WrongSetting]:
        for error in errors:
            name = str(error["loc"][0]) if error["loc"] else ""
            cause = error.get("ctx", {}).get("error")
            if isinstance(cause, WrongSettingsError):
                yield from (replace(inner, path=(*map(str, error["loc"][:1]), *inner.path)) for inner in cause.wrong)
            elif error["type"] == "extra_forbidden":
                hint = nearest_or_all(name, cls.model_fields, "it has")
                yield WrongSetting((name,), f"has no setting {name!r}: {hint}", unknown=True)
            elif error["type"] == "missing":
                yield WrongSetting((name,), f"is missing: give {cls.model_fields[name].description}".removesuffix("."))
            elif cause is not None:
                yield WrongSetting((name,), f"is {settings.get(name)!r}{cause}")
            else:
                yield WrongSetting((name,), f"is {settings[name]!r}: {cls._remedy(name)}")

    @classmethod
    def _remedy(cls, name: str) -> str:
        """State what a field allows, as ``"it must be an integer of at least 1, or None (what it is)"``."""
        field = cls.model_fields[name]
        if get_origin(_members(field.annotation)[0]) is Literal:
            return f"choose {cls.allowed_values(name)}"
        meaning = (field.description or name).partition(". ")[0].removesuffix(".")
        return f"it must be {cls.allowed_values(name)} ({meaning})"

    @classmethod
    def allowed_values(cls, name: str) -> str:
        """Return the values that a field allows, in words, as ``"an integer of at least 1, or None"``."""
        field = cls.model_fields[name]
        members = _members(field.annotation)
        if get_origin(members[0]) is Literal:
            return f"{_allowed(members[0])}{' (or None)' if NoneType in members else ''}"
        allowed = [_allowed(member, tuple(field.metadata)) for member in members if member is not NoneType]
        if NoneType in members:
            allowed.append("None")
        return f"{', '.join(allowed[:-1])}{', or ' if allowed[1:] else ''}{allowed[-1]}"


def takes(section: type[Section]) -> Callable[[Function], Function]:
    """Let the ``**settings`` of a function be the options of a section, in its signature and in its docstring.

    Parameters that the function declares or describes by itself stay as they are.
    """

    def declare(function: Function) -> Function:
        own = inspect.signature(function)
        hints = get_type_hints(section)
        begin = [one for one in own.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        rest = {name: one for name, one in own.parameters.items() if one.kind is one.KEYWORD_ONLY}
        options, described = [], {}
        for field, argument in section.argument_names().items():
            declared = section.model_fields[field]
            default = None if declared.default_factory else declared.default  # None stands for what is made
            option = inspect.Parameter(
                argument, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field]
            )
            options.append(rest.pop(argument, option))
            described[argument] = declared.description or ""
        changed: Any = function
        changed.__signature__ = own.replace(parameters=[*begin, *options, *rest.values()])
        changed.__doc__ = _with_arguments(
            inspect.getdoc(function) or "", list(changed.__signature__.parameters), described
        )
        return function

    return declare


_ENTRY = re.compile(r"^    (\**\w+): .*(?:\n {5,}.*)*", re.MULTILINE)


def _with_arguments(doc: str, names: Collection[str], described: Mapping[str, str]) -> str:
    """Return a docstring with an entry for each argument, in order: its own, or what the section says."""
    before, _, after = doc.partition("Args:\n")
    entries, blank, rest = after.partition("\n\n")
    found = {match[1]: match[0] for match in _ENTRY.finditer(entries)}
    lines = [
        found.get(name) or textwrap.fill(f"    {name}: {described[name]}", 116, subsequent_indent=" " * 8)
        for name in names
    ]
    return "".join([before, "Args:\n", "\n".join(lines), blank, rest])


def _plain(value: object) -> object:
    """Return a NumPy scalar as the Python number it holds."""
    return cast(Any, value).item() if type(value).__module__ == "numpy" and not hasattr(value, "__len__") else value


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; any other type by itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _allowed(annotation: Any, limits: tuple[object, ...] = ()) -> str:
    """Return the values that a type allows, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(arguments[0], (*arguments[1:], *limits))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is list:
        return f"a list with each entry {_allowed(arguments[0])}"
    if origin is dict:
        return "a mapping" + (f" with each value {_allowed(arguments[1])}" if arguments[1] in _WORDS else "")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a mapping of {', '.join(annotation.model_fields)}"
    return _WORDS[annotation] + _range(limits)


def _range(limits: tuple[object, ...]) -> str:
    """Return the range that limits leave: " of at least 1", " above 0", " in (0, 1]"."""
    low = next((limit for limit in limits if isinstance(limit, Ge | Gt)), None)
    high = next((limit for limit in limits if isinstance(limit, Le | Lt)), None)
    if low is None:
        return ""
    least = f"[{low.ge}" if isinstance(low, Ge) else f"({low.gt}"
    if high is not None:
        return f" in {least}, {f'{high.le}]' if isinstance(high, Le) else f'{high.lt})'}"
    return f" of at least {low.ge}" if isinstance(low, Ge) else f" above {low.gt}"
