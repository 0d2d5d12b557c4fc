"""A problem, and the columns of a table that problems are read from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from gradstats.config.options import of_type

#: Options of a source of problems by name; reasoning-gym's tasks accept any values that JSON can hold.
Settings = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One problem of a set.

    Attributes:
        prompt_id: name of the problem, unique in its set and stable from run to run.
        prompt: the text of the user's message; the policy's chat template goes around it.
        answer: the reference answer, as text.
        reward: name of the reward function that suits the set (see :func:`gradstats.rewards.registry.get_reward`).
        details: what a reward function needs beyond the answer, such as the settings of a reasoning-gym task.
    """

    prompt_id: str
    prompt: str
    answer: str
    reward: str = "math"
    details: Settings = field(default_factory=dict)


_AnswerFormat = Literal["text", "last_number", "hashes"]

_FRACTIONS, _SUPERSCRIPTS = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", "⁰¹²³⁴⁵⁶⁷⁸⁹"
# Digits with all that may join them to one value, or to several: 1,204.50 or 2 1/2 or 12:30 or 2024-01-05.
_DIGITS = re.compile(
    r"(?P<sign>[-−–]\s?\$?)?(?P<value>(?:\.?\d+(?:(?:[ \u00a0\u2009\u202f]|\*\*|\s?[×*]\s?|[,.:/^_'’⁄]|[eE][-+]?)\d+|"
    rf"(?:-\d+){{2,}}|\^\{{|\s?[{_FRACTIONS}]|[⁻{_SUPERSCRIPTS}])*)|[{_FRACTIONS}])"
)
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|\.\d+|\d+(?:\.\d+)?[eE][-+]?\d+")
_LIST, _INDIAN = re.compile(r"\d+(?:,\d+){2,}"), re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")
# Digits after these are part of an expression.
_INSIDE = re.compile(r"(?:[\^_]\{?|\}\s*\{|sqrt\s*\{?|frac\s*\{?|√)\s*$")

_WHOLE_AND = re.compile(r"\d\s(?:and|&)\s$")


def last_number(text: str) -> str | None:
    """Return the last number in a text, without commas; None without one, or where it has no plain reading as a number.

    A minus sign after a digit or a bracket is a subtraction; of a list the last entry counts. "2 1/2", "10^6",
    "1 000 000" and "12:30" end in digits that are not the number, and give None.
    """
    runs = list(_DIGITS.finditer(text))
    if not runs:
        return None
    found = runs[-1]
    value, before = found["value"], text[: found.start()]
    if _LIST.fullmatch(value) and not _NUMBER.fullmatch(value) and not _INDIAN.fullmatch(value):
        return value.rpartition(",")[2]
    if not _NUMBER.fullmatch(value) or _INSIDE.search(before) or ("/" in value and _WHOLE_AND.search(before)):
        return None
    number = value.replace(",", "")
    sign = found["sign"]
    if sign is None or before.rstrip()[-1:].isdigit() or before.rstrip().endswith(")"):
        return number
    return None if sign[-1].isspace() else f"-{number}"


# Commas between groups of three digits, but for those of a pair: (1,200).
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d|,\d)")


def extract_reference(text: str, answer_format: str) -> str | None:
    """Return the reference answer in a solution text."""
    if answer_format == "text":
        return text.strip() or None
    if answer_format == "hashes":
        _, marker, answer = text.rpartition("####")
        answer = answer.strip()
        if not re.search(r"[(\[{]", answer):
            answer = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), answer)
        return answer or None if marker else None
    return last_number(text)


@dataclass(frozen=True)
class ColumnMapping:
    """Which columns of a table hold its problems.

    A column may be a path into nested columns: ``reward_model.ground_truth``, ``choices.0.text``.
    """

    prompt_column: str = "prompt"
    answer_column: str = "answer"
    id_column: str | None = None  # unique, stable names of the problems; the row number when None
    answer_format: str = "text"
    skip_unparsable: bool = False
    drop_repeats: bool = False

    def __post_init__(self) -> None:
        if self.answer_format not in get_args(_AnswerFormat):
            known = ", ".join(get_args(_AnswerFormat))
            raise ValueError(f"answer_format must be one of {known}, not {self.answer_format!r}")


@runtime_checkable
class Rows(Protocol):
    """A table whose rows can be read one by one, each as a mapping from column to cell."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Mapping[str, object]: ...


class _UnparsableAnswer(ValueError):
    """A row has no answer in the stated format."""


def problems_from_rows(
    rows: Rows,
    columns: Sequence[str],
    source: str,
    mapping: ColumnMapping,
    n: int | None = None,
    seed: int = 0,
) -> list[Problem]:
    """Read the problems of a table in row order: all of them, or a seeded subset.

    Subsets with the same seed are nested: a larger ``n`` keeps every problem of a smaller one.
    """
    if not len(rows):
        raise ValueError(f"{source} holds no problems")
    for role, column in (
        ("prompt", mapping.prompt_column),
        ("answer", mapping.answer_column),
        ("id", mapping.id_column),
    ):
        if column is not None and column not in columns and column.partition(".")[0] not in columns:
            has = ", ".join(map(str, columns))
            raise ValueError(f"{source} has no column {column!r} (it has {has}): set {role}_column")
    order = range(len(rows)) if n is None else np.random.default_rng(seed).permutation(len(rows)).tolist()
    problems: dict[int, Problem] = {}
    prompts: set[str] = set()
    n_unparsable = 0
    for row in order:
        if len(problems) == n:
            break
        try:
            problem = _problem(rows[row], row, source, mapping)
        except _UnparsableAnswer:
            if not mapping.skip_unparsable:
                raise
            n_unparsable += 1
            continue
        if mapping.drop_repeats and problem.prompt in prompts:
            continue
        prompts.add(problem.prompt)
        problems[row] = problem
    if n is not None and len(problems) < n:
        raise ValueError(f"n is {n}, but {source} holds only {len(problems)} problems")
    if n_unparsable:
        warnings.warn(
            f"{n_unparsable} rows of {source} were left out: no answer in {mapping.answer_column!r} in the format "
            f"{mapping.answer_format!r}",
            UserWarning,
            stacklevel=2,
        )
    if not problems:
        raise ValueError(f"{source} holds no problems whose answer could be read")
    first: dict[str, int] = {}
    for row in sorted(problems):
        name = problems[row].prompt_id
        if first.setdefault(name, row) != row:
            raise ValueError(
                f"{source} repeats names in its column {mapping.id_column!r} ({name!r} in rows {first[name]} and "
                f"{row}): prompt ids must be unique, so choose another id_column or none"
            )
    return [problems[row] for row in sorted(problems)]


def _problem(record: Mapping[str, object], row: int, source: str, mapping: ColumnMapping) -> Problem:
    prompt = _text(_cell(record, mapping.prompt_column, row, source), mapping.prompt_column, row, source)
    answer = _cell(record, mapping.answer_column, row, source)
    if isinstance(answer, (list, dict)):
        entry = next(iter(answer), 0) if isinstance(answer, dict) else 0
        raise ValueError(
            f"row {row} of {source} holds {of_type(answer)} in {mapping.answer_column!r}: name the entry that "
            f"is the answer, for example answer_column={mapping.answer_column}.{entry}"
        )
    reference = None if answer is None or answer != answer else extract_reference(str(answer), mapping.answer_format)
    if reference is None:
        raise _UnparsableAnswer(
            f"row {row} of {source} has no answer in {mapping.answer_column!r} in the format "
            f"{mapping.answer_format!r}: {str(answer)[:60]!r}; correct it, or set skip_unparsable=true"
        )
    name = row if mapping.id_column is None else _cell(record, mapping.id_column, row, source)
    if name is None or name == "":
        raise ValueError(f"row {row} of {source} has no name in {mapping.id_column!r}: choose another id_column")
    return Problem(prompt_id=str(name), prompt=prompt, answer=reference)


def _cell(record: Mapping[str, object], column: str, row: int, source: str) -> object:
    """Return a cell, or the value at a dotted path inside one; None where the row has no such column."""
    if column in record or "." not in column:
        return record.get(column)
    first, *path = column.split(".")
    value, path_read = record.get(first), first
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            has = ", ".join(map(str, value)) if isinstance(value, Mapping) else of_type(value)
            raise ValueError(f"row {row} of {source} has no {step!r} in {path_read!r} (it has {has})")
        path_read += f".{step}"
    return value


def _text(value: object, column: str, row: int, source: str) -> str:
    """Return the prompt's text; for a conversation, the text of its only user message."""
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        roles = [message.get("role") for message in value]
        if roles != ["user"]:
            raise ValueError(
                f"row {row} of {source} holds a conversation of {', '.join(map(str, roles)) or 'no messages'} in "
                f"{column!r}: a prompt is one user message; pass a system prompt as system_prompt"
            )
        value = value[0].get("content")
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"row {row} of {source} has an empty {column!r}")
    if not isinstance(value, str):
        raise ValueError(
            f"row {row} of {source} holds {of_type(value)} in {column!r} ({str(value)[:60]}): a prompt is text"
        )
    return value
