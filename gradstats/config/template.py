"""The text of a new experiment file: every setting with what it means, those that were not chosen behind a ``#``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from gradstats.config.experiment import Experiment
from gradstats.config.validation import Section

#: The schema with which editors complete and check a file; it lies beside it.
SCHEMA_FILE = "experiment.schema.json"
_WIDTH = 110
_BEGINNING = """\
# yaml-language-server: $schema={schema}
# Check this file with `gradstats run {file} --dry-run`, and run it with `gradstats run {file}`.
# A setting behind "#" shows the value that it has by default; remove the "# " in front of it to change it.
"""


def experiment_text(file: str, settings: Mapping[str, Any]) -> str:
    """Write an experiment file that chooses some settings and shows all others with their defaults.

    Args:
        file: the name of the file, for its first lines.
        settings: ``description``, and section → setting → value; a section of which nothing is chosen shows its first
            setting with its default.

    Returns:
        YAML, with one comment for every setting.

    Raises:
        WrongSettingsError: when a setting is unknown, missing, of a wrong type or out of range.
    """
    Experiment(name="new", **dict(settings))
    parts = [_BEGINNING.format(schema=SCHEMA_FILE, file=file)]
    for name, field in Experiment.model_fields.items():
        if name == "name":  # that of the file
            continue
        of_section = field.annotation if isinstance(field.annotation, type) else None
        chosen = settings.get(name)
        if of_section is not None and issubclass(of_section, Section):
            parts.append("\n".join([*_comment(field, ""), f"{name}:", *_section(of_section, chosen or {})]) + "\n")
        else:
            parts.append("\n".join(_setting(name, field, chosen, "")) + "\n")
    return "\n".join(parts)


def _section(section: type[Section], chosen: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of a section."""
    if not chosen:  # a section whose settings are all comments would be empty
        first, field = next(iter(section.model_fields.items()))
        chosen = {first: field.get_default(call_default_factory=True)}
    for name, field in section.model_fields.items():
        yield from _setting(name, field, chosen.get(name), "  ", shown=name in chosen)


def _setting(name: str, field: FieldInfo, value: object, indent: str, *, shown: bool | None = None) -> Iterator[str]:
    """Yield a setting under its comment, itself a comment where it is not chosen."""
    yield from _comment(field, indent)
    if value is not None or shown:
        yield f"{indent}{name}: {as_yaml(value)}"
    else:
        yield f"{indent}# {name}: {as_yaml(field.get_default(call_default_factory=True))}"


def _comment(field: FieldInfo, indent: str) -> list[str]:
    meaning = field.description or ""
    return textwrap.wrap(
        meaning, _WIDTH, initial_indent=f"{indent}## ", subsequent_indent=f"{indent}## ", break_on_hyphens=False
    )


def as_yaml(value: object) -> str:
    """Write a value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()
