"""Problems from a data set on the Hugging Face hub, through the `datasets` library (extra ``hub``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from gradstats.hub import hub_problem
from gradstats.prompts.columns import problems_from_frame
from gradstats.prompts.problem import Problem

#: Data sets whose columns and answer format are known.
KNOWN_SETS: dict[str, dict[str, Any]] = {
    "microsoft/orca-math-word-problems-200k": {
        "split": "train",
        "prompt_column": "question",
        "answer_column": "answer",
        "answer_format": "last_number",
    },
    "openai/gsm8k": {
        "config": "main",
        "split": "test",
        "prompt_column": "question",
        "answer_column": "answer",
        "answer_format": "hashes",
    },
}


def hub_problems(
    dataset: str,
    *,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    n: int | None = None,
    seed: int = 0,
    **columns: Any,
) -> list[Problem]:
    """A seeded subset of a hub data set (or of a local folder that `datasets` can load).

    Args:
        dataset: id on the hub, or a folder.
        config: the data set's configuration name.
        split: which split to take.
        revision: commit, tag or branch of the data set.
        n: how many problems, drawn without replacement; all when None.
        seed: seed of the draw.
        **columns: ``prompt_column``, ``answer_column``, ``id_column``, ``answer_format``, see
            :func:`gradstats.prompts.columns.problems_from_frame`. Known data sets need none.

    Raises:
        ImportError: when the `datasets` library is missing.
        ConnectionError: when the hub cannot be reached.
        ValueError: when ``n`` exceeds the split, or a column is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"loading {dataset!r} from the hub needs the `datasets` library: pip install 'gradstats[hub]'"
        ) from error
    if not Path(dataset).exists() and (reason := hub_problem(dataset, "README.md", "dataset")):
        raise _unreachable(dataset, split, reason)
    try:
        rows = datasets.load_dataset(dataset, config, split=split, revision=revision)
    except (ConnectionError, OSError, ValueError) as error:
        raise _unreachable(dataset, split, f"{type(error).__name__}: {error}") from error
    if n is not None and n > len(rows):
        raise ValueError(f"n is {n}, but the split {split!r} of {dataset} holds only {len(rows)} problems")
    if n is not None:
        # `datasets` keeps the row numbers of the split, which then name the problems whatever the subset.
        rows = rows.add_column("__row__", list(range(len(rows)))).shuffle(seed=seed).select(range(n))
        columns.setdefault("id_column", "__row__")
    columns = {"prompt_column": "prompt", "answer_column": "answer"} | columns
    return problems_from_frame(pd.DataFrame(rows.to_dict()), dataset, **columns)


def _unreachable(dataset: str, split: str, reason: str) -> ConnectionError:
    return ConnectionError(
        f"the data set {dataset!r} (split {split!r}) could not be loaded: {reason}; where the hub is out of reach, "
        "save it as Parquet elsewhere and pass that file's path instead"
    )
