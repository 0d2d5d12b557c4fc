"""Sections as options of a command: ``--group-size 4``, ``--reward a b=0.5``, ``--template-options k=v``."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gradstats.config.experiment import with_settings
from gradstats.config.sections import BlockNames, FreeOptions, GroupSizes, PolicySection, RewardNames
from gradstats.config.validation import Section

Positional = tyro.conf.Positional

Options = TypeVar("Options", bound=Section)

#: A section whose fields are options of the command itself: ``--group-size``, not ``--settings.group-size``.
OptionsOf = Annotated[Options, tyro.conf.arg(name="")]

#: Settings as words: ``name=value …``.
SettingWords = tuple[str, ...]

REGISTRY = ConstructorRegistry()


def described_by(section: type[Section], field: str) -> Any:
    """The help of a section's field, for an option that a command declares by itself."""
    return tyro.conf.arg(help=section.model_fields[field].description)


def policy_section(name: str, settings: SettingWords, **options: object) -> PolicySection:
    """The policy of a command.

    Args:
        name: the policy.
        settings: words of ``--policy-settings``.
        **options: the same settings given by separate options; None where they were not given.

    Raises:
        ValueError: when a setting is given in both ways, or is wrong.
    """
    given = {key: value for key, value in options.items() if value is not None}
    written = with_settings({}, settings)
    for key in given.keys() & written.keys():
        raise ValueError(f"{key} is given both by --{key} and by --policy-settings: give it once")
    fields: dict[str, Any] = {"name": name, **written, **given}
    return PolicySection(**fields)


@REGISTRY.primitive_rule
def _words(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Types of the sections that are several words on the command line."""
    if info.type == FreeOptions:
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME=VALUE ...]",
            instance_from_str=lambda words: with_settings({}, words),
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{key}={entry}" for key, entry in value.items()],
        )
    if info.type == RewardNames:
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME|NAME=WEIGHT ...]",
            instance_from_str=lambda words: words or None,
            is_instance=lambda value: value is None or isinstance(value, list),
            str_from_instance=lambda value: value or ["None"],
        )
    if info.type == BlockNames:
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="STR",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda value: [value],
        )
    if info.type == GroupSizes:
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[INT ...]",
            instance_from_str=_group_sizes,
            is_instance=lambda value: value is None or isinstance(value, int | list),
            str_from_instance=lambda value: list(map(str, value if isinstance(value, list) else [value])),
        )
    return None


def _group_sizes(words: list[str]) -> int | list[int] | None:
    """One size, several, or None for all completions of a prompt."""
    if words in ([], ["None"]):
        return None
    try:
        sizes = [int(word) for word in words]
    except ValueError:
        wrong = " ".join(words)
        raise ValueError(f"{wrong!r} must be one integer, several, or None for all completions of a prompt") from None
    return sizes[0] if len(sizes) == 1 else sizes
