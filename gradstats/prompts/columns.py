"""From a table with a prompt and an answer column to problems, and how reference answers are written."""

from __future__ import annotations

import re
from typing import Literal, get_args

import pandas as pd

from gradstats.prompts.problem import Problem

AnswerFormat = Literal["text", "last_number", "hashes"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def extract_reference(text: str, answer_format: str) -> str | None:
    """The reference answer in a solution text.

    Args:
        text: what the data set's answer column holds.
        answer_format: "text" takes it whole; "last_number" takes the last number in it (free-text solutions such
            as orca-math's); "hashes" takes what follows the last ``####`` (GSM8K).

    Returns:
        The answer, or None when the text holds none.
    """
    if answer_format == "text":
        return text.strip() or None
    if answer_format == "hashes":
        _, marker, answer = text.rpartition("####")
        return answer.strip().replace(",", "") or None if marker else None
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def problems_from_frame(
    frame: pd.DataFrame,
    source: str,
    prompt_column: str,
    answer_column: str,
    *,
    id_column: str | None = None,
    answer_format: str = "text",
) -> list[Problem]:
    """Problems of a table, in row order; rows whose answer holds none in the given format are an error.

    Raises:
        ValueError: for an empty table, a missing column, an empty cell, repeated ids or an unknown format.
    """
    if answer_format not in get_args(AnswerFormat):
        raise ValueError(f"answer_format must be one of {', '.join(get_args(AnswerFormat))}, not {answer_format!r}")
    if frame.empty:
        raise ValueError(f"{source} holds no problems")
    for role, column in (("prompt", prompt_column), ("answer", answer_column), ("id", id_column)):
        if column is not None and column not in frame:
            has = ", ".join(map(str, frame.columns))
            raise ValueError(f"{source} has no column {column!r} (it has {has}): name the right one with {role}_column")
    problems = []
    for row, record in enumerate(frame.to_dict("records")):
        prompt, answer = record[prompt_column], record[answer_column]
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"row {row} of {source} has an empty {prompt_column!r}")
        reference = extract_reference(str(answer), answer_format) if pd.notna(answer) else None
        if reference is None:
            raise ValueError(
                f"row {row} of {source} has no answer in {answer_column!r} in the format {answer_format!r}: "
                f"{str(answer)[:60]!r}"
            )
        prompt_id = str(record[id_column]) if id_column else str(row)
        problems.append(Problem(prompt_id=prompt_id, prompt=prompt, answer=reference))
    if len({problem.prompt_id for problem in problems}) < len(problems):
        raise ValueError(f"{source} repeats names in its column {id_column!r}: prompt ids must be unique")
    return problems
