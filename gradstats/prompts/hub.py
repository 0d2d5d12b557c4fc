"""Problems from a data set on the Hugging Face hub, through the ``datasets`` library (extra ``hub``)."""

from __future__ import annotations

from pathlib import Path

from gradstats.prompts.columns import ColumnMapping, problems_from_rows
from gradstats.prompts.problem import Problem
from gradstats.system.hub import hub_problem


def hub_problems(
    dataset: str,
    mapping: ColumnMapping,
    n: int | None = None,
    seed: int = 0,
    *,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
) -> list[Problem]:
    """Read the problems of a hub data set, or of a local folder that ``datasets`` can load.

    Args:
        dataset: id on the hub, or a folder.
        mapping: which columns hold the problems.
        n: how many problems; all when None.
        seed: seed of the subset; the same rows in a file give the same subset.
        config: the data set's configuration name.
        split: the split to read.
        revision: commit, tag or branch of the data set.

    Returns:
        The problems.

    Raises:
        ImportError: when the ``datasets`` library is missing.
        ConnectionError: when the hub cannot be reached.
        ValueError: for an unknown configuration or split, a broken file, and where
            :func:`gradstats.prompts.columns.problems_from_rows` raises it.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ImportError(
            f"loading {dataset!r} from the hub needs the `datasets` library: pip install 'gradstats[hub]'"
        ) from error
    if not Path(dataset).exists() and (reason := hub_problem(dataset, "README.md", "dataset", revision)):
        raise _unreachable(dataset, reason)
    try:
        rows = datasets.load_dataset(dataset, config, split=split, revision=revision)
    except (ConnectionError, OSError) as error:
        if Path(dataset).exists():
            raise ValueError(
                f"the data set folder {dataset} cannot be loaded: {' '.join(str(error).split())}"
            ) from error
        raise _unreachable(dataset, f"{type(error).__name__}: {error}") from error
    except (ValueError, DatasetsError) as error:
        requested = f"config {config!r} and split {split!r}" if config else f"split {split!r}"
        raise ValueError(f"the data set {dataset!r} has no {requested}: {' '.join(str(error).split())}") from error
    return problems_from_rows(rows, rows.column_names, f"the split {split!r} of {dataset}", mapping, n, seed)


def _unreachable(dataset: str, reason: str) -> ConnectionError:
    folder = f"data/{dataset.rpartition('/')[2]}"
    return ConnectionError(
        f"the data set {dataset!r} could not be loaded ({reason}): download it where there is a connection "
        f"(hf download {dataset} --repo-type dataset --local-dir {folder}) and pass that folder instead"
    )
