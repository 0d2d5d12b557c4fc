"""Regular expressions that a user gives, with a limit on the time that they take."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradstats.system.worker import PROCESS, IsolatedTimeoutError

#: Seconds for searching all texts.
SECONDS = 10.0
# A pattern with so few repetitions, none of them of a group, takes a polynomial of a low degree in the length.
_FEW = 4
_REPETITION, _OF_A_GROUP = re.compile(r"[*+{]"), re.compile(r"\)[*+{]|\\[1-9]")


def matches(pattern: str, texts: Sequence[str], setting: str) -> list[list[tuple[int, int]]]:
    """Return where a pattern matches in each text, as start and end.

    Nested repetitions such as ``(a+)+$`` can take longer than the age of the universe, and nothing in this process
    could stop them: patterns with such repetitions are searched in the worker process.

    Raises:
        ValueError: for a pattern that is not a regular expression, or takes longer than :data:`SECONDS`.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{setting} is {pattern!r}, which is not a regular expression: {error}") from error
    if len(_REPETITION.findall(pattern)) <= _FEW and not _OF_A_GROUP.search(pattern):
        return search(pattern, texts)
    try:
        found = PROCESS.call("gradstats.system.patterns:search", pattern, list(texts), seconds=SECONDS)
    except IsolatedTimeoutError as error:
        raise ValueError(
            f"{setting} is {pattern!r}, a regular expression that does not end within {SECONDS:g} s: write it without "
            "a repetition inside a repeated group"
        ) from error
    return [[(start, end) for start, end in spans] for spans in found]


def search(pattern: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return where a pattern matches in each text."""
    return [[match.span() for match in re.finditer(pattern, text)] for text in texts]
