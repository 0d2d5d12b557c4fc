"""Problems from a file: JSONL, CSV or Parquet with a prompt and an answer column."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gradstats.prompts.columns import ColumnMapping, problems_from_rows
from gradstats.prompts.problem import Problem
from gradstats.system.json_lines import read_json_lines

SUFFIXES = (".jsonl", ".csv", ".parquet")


def file_problems(path: Path, mapping: ColumnMapping, n: int | None = None, seed: int = 0) -> list[Problem]:
    """Read the problems of a file, in its order.

    Args:
        path: a ``.jsonl``, ``.csv`` or ``.parquet`` file.
        mapping: which columns hold the problems.
        n: how many problems; all when None.
        seed: seed of the subset.

    Returns:
        The problems.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: for a broken or truncated file (JSONL: the line is named), and where
            :func:`gradstats.prompts.columns.problems_from_rows` raises it.
    """
    if not path.exists():
        raise FileNotFoundError(f"the prompt file {path} does not exist")
    if path.suffix == ".jsonl":
        rows = [row for _, row in read_json_lines(path)]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return problems_from_rows(rows, columns, str(path), mapping, n, seed)
    try:
        # Every cell of a CSV file stays text: "007", "1e3" and "NA" are answers.
        table = pd.read_csv(path, dtype=str, keep_default_na=False) if path.suffix == ".csv" else pq.read_table(path)
    except (ValueError, OSError) as error:  # pandas' and pyarrow's parser errors are ValueErrors
        reason = " ".join(str(error).split())
        raise ValueError(f"the prompt file {path} cannot be read ({reason}): write or download it again") from error
    if isinstance(table, pd.DataFrame):
        return problems_from_rows(table.to_dict("records"), list(table), str(path), mapping, n, seed)
    return problems_from_rows(_ArrowRows(table), table.column_names, str(path), mapping, n, seed)


class _ArrowRows:
    """Rows of an Arrow table, converted one by one, so that a subset of a large file stays cheap."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, row: int) -> dict[str, object]:
        return {name: self._table.column(name)[row].as_py() for name in self._table.column_names}
