"""Problems from a file: JSONL, CSV or Parquet with a prompt and an answer column."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from gradstats.prompts.columns import problems_from_frame
from gradstats.prompts.problem import Problem

SUFFIXES = (".jsonl", ".csv", ".parquet")


def file_problems(
    path: Path,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    id_column: str | None = None,
    answer_format: str = "text",
) -> list[Problem]:
    """Read every problem of a file, in its order.

    Args:
        path: a ``.jsonl``, ``.csv`` or ``.parquet`` file.
        prompt_column: column with the problem's text.
        answer_column: column with the reference answer.
        id_column: column with unique names; without it the row number names the problem.
        answer_format: how the reference answer is written, see
            :func:`gradstats.prompts.columns.extract_reference`.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: for an unknown suffix, a broken line (named), an empty file, or a missing column.
    """
    if not path.exists():
        raise FileNotFoundError(f"the prompt file {path} does not exist")
    return problems_from_frame(
        _read(path), str(path), prompt_column, answer_column, id_column=id_column, answer_format=answer_format
    )


def _read(path: Path) -> pd.DataFrame:
    if path.suffix == ".jsonl":
        return pd.DataFrame(_json_lines(path))
    if path.suffix not in SUFFIXES:
        raise ValueError(f"the prompt file {path} must end in one of {', '.join(SUFFIXES)}")
    try:
        return pd.read_csv(path, dtype=str) if path.suffix == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError) as error:  # pandas' and pyarrow's parser errors are ValueErrors
        raise ValueError(f"the prompt file {path} cannot be read ({error})") from error


def _json_lines(path: Path) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of the prompt file {path} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} of the prompt file {path} is not a JSON object: {line[:60]!r}")
        rows.append(row)
    return rows
