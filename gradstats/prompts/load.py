"""Load problems by the name of their source: files, the hub, known sets, generated tasks, functions of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from inspect import signature
from pathlib import Path

from gradstats.config.experiment import Experiment
from gradstats.config.options import of_type
from gradstats.config.validation import naming, nearest_or_all
from gradstats.prompts.embedded import generate_problems
from gradstats.prompts.problem import ColumnMapping, Problem, Settings, problems_from_rows
from gradstats.system.environment import hub_problem
from gradstats.system.files import read_json_lines
from gradstats.system.lazy_imports import pa, pd
from gradstats.system.user_code import import_function
from gradstats.system.worker import PROCESS, IsolatedError

_SUFFIXES = (".jsonl", ".csv", ".parquet")


def file_problems(path: Path, mapping: ColumnMapping, n: int | None = None, seed: int = 0) -> list[Problem]:
    """Read the problems of a file, in its order."""
    import pyarrow.parquet as pq

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


def _hub_problems(
    dataset: str,
    mapping: ColumnMapping,
    n: int | None = None,
    seed: int = 0,
    *,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
) -> list[Problem]:
    """Read the problems of a hub data set, or of a local folder that ``datasets`` can load."""
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


#: Id on the hub → settings of :func:`gradstats.load_prompts`.
_KNOWN_SETS: dict[str, Settings] = {
    # Solutions are free text that ends with the answer.
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
    "HuggingFaceH4/MATH-500": {
        "split": "test",
        "prompt_column": "problem",
        "answer_column": "answer",
        "id_column": "unique_id",
    },
    # Each problem is repeated about a hundred times; the prompt is a conversation of one message.
    "BytedTsinghua-SIA/DAPO-Math-17k": {
        "split": "train",
        "prompt_column": "prompt",
        "answer_column": "reward_model.ground_truth",
        "id_column": "extra_info.index",
        "drop_repeats": True,
    },
    "open-r1/DAPO-Math-17k-Processed": {
        "config": "all",
        "split": "train",
        "prompt_column": "prompt",
        "answer_column": "solution",
        "id_column": "extra_info.index",
    },
}

_OF_THE_HUB = ("config", "split")


def _known_settings(name: str) -> Settings:
    """Return the settings of a known data set, by its id or folder name; empty for other data sets."""
    last = Path(name).name.lower()
    for known, settings in _KNOWN_SETS.items():
        if name == known or (Path(name).is_dir() and last == known.rpartition("/")[2].lower()):
            return settings
    return {}


def _columns_like(name: str) -> Settings:
    """Return the columns and answer format of a known data set, for a file or data set of the same shape."""
    if name not in _KNOWN_SETS:
        raise ValueError(f"like is {name!r}: choose a data set whose columns are known: {', '.join(_KNOWN_SETS)}")
    return {key: value for key, value in _KNOWN_SETS[name].items() if key not in _OF_THE_HUB}


_FIELDS = ("prompt_id", "prompt", "answer")


def _user_problems(name: str, n: int | None, seed: int, settings: Settings) -> list[Problem]:
    """Call the user's function as ``function(n, rng=seed, **settings)``.

    It returns problems, or mappings with the fields of :class:`gradstats.prompts.Problem`, of which ``reward`` and
    ``details`` may be left out; ``n`` is None when all problems are requested.
    """
    function = import_function(name, "the source of problems")
    try:
        returned = function(n, rng=seed, **settings)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the source of problems {name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(returned, Iterable):
        raise ValueError(f"the source of problems {name!r} returned {of_type(returned)}: return a list")
    problems = [_problem(entry, name) for entry in returned]
    if n is not None and len(problems) != n:
        raise ValueError(f"the source of problems {name!r} returned {len(problems)} problems, and n is {n}")
    return problems


def _problem(entry: object, name: str) -> Problem:
    if isinstance(entry, Problem):
        return entry
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(field), str) for field in _FIELDS):
        raise ValueError(
            f"the source of problems {name!r} returned {repr(entry)[:60]}: return gradstats.prompts.Problem, or "
            f"mappings with the texts {', '.join(_FIELDS)}"
        )
    try:
        return Problem(**entry)
    except TypeError as error:
        raise ValueError(f"the source of problems {name!r} returned a problem with other fields: {error}") from error


# For some tasks a single problem takes many seconds to generate.
_SECONDS = 600.0


def _reasoning_gym_problems(task: str, n: int, seed: int, **settings: object) -> list[Problem]:
    """Generate ``n`` problems of a reasoning-gym task, which depend only on the seed and the settings."""
    try:
        from reasoning_gym.factory import DATASETS  # filled by importing the package
    except ImportError as error:
        raise ImportError(
            f"the task {task!r} needs reasoning-gym, which is not installed: pip install 'gradstats[tasks]'"
        ) from error
    if task not in DATASETS:
        near = ", ".join(get_close_matches(task, DATASETS, n=3)) or "none"
        raise ValueError(f"reasoning-gym has no task {task!r}; nearest: {near}")
    problems = []
    for index in range(n):
        try:
            entry = PROCESS.call(
                "gradstats.prompts.task_entries:entry", task, settings, seed, n, index, seconds=_SECONDS
            )
        except IsolatedError as error:
            raise ValueError(f"the reasoning-gym task {task!r} refuses the settings {settings}: {error}") from error
        details = {"task": task, "settings": settings, "seed": seed, "size": n, "index": index}
        problems.append(Problem(f"{task}-{seed}-{index}", entry["question"], entry["answer"], "reasoning_gym", details))
    return problems


def _is_reasoning_gym_task(name: str) -> bool:
    """Return whether ``name`` is a task that the installed reasoning-gym knows (False where it is not installed)."""
    try:
        from reasoning_gym.factory import DATASETS  # filled by importing the package
    except ImportError:
        return False
    return name in DATASETS


_PREFIX = "reasoning-gym/"
_COLUMNS = tuple(field.name for field in fields(ColumnMapping))
_HUB = ("config", "split", "revision")
#: More problems than a run samples; with a mistyped number the generator would be busy for hours.
_MOST_GENERATED = 100_000


def load_prompts(source: str | Path, n: int | None = None, *, rng: int = 0, **settings: object) -> list[Problem]:
    r"""Load problems from a file, a data set or a generator.

    Args:
        source: "embedded", a ``.jsonl``, ``.csv`` or ``.parquet`` file, ``reasoning-gym/TASK``, a hub data set, or a
            function of your own: ``module:function`` or ``path/to/file.py:function``. "embedded" is the step-by-step
            arithmetic that the embedded policy was trained on. A file has the columns ``prompt`` and ``answer`` (or
            those named in ``settings``). A bare task name works too (extra ``tasks``), and so does a folder that holds
            a data set of the hub (extra ``hub``). For a function of your own see
            :func:`gradstats.prompts.load._user_problems`.
        n: number of prompts; all of a file or data set by default. It is required for generated problems. A subset is
            seeded and keeps the order of the source; a larger ``n`` only adds to it.
        rng: seed of the subset, or of the generator.
        **settings: options of the source, as in ``prompt_column="question", answer_format="hashes"``. For files and the
            hub: ``prompt_column``, ``answer_column``, ``id_column``, ``answer_format``, ``skip_unparsable``,
            ``drop_repeats`` (see :class:`gradstats.prompts.problem.ColumnMapping`), and ``like``, the id of a known
            data set that has the same columns; known data sets need none of these. For the hub also ``config``,
            ``split`` and ``revision``. For reasoning-gym the settings of the task; for "embedded" ``steps``.

    Returns:
        The problems, with unique, stable ids.

    Raises:
        FileNotFoundError: when a file is missing.
        ValueError: for an unreadable file, a missing column, an ``n`` larger than the source, an unknown setting, or
            an unknown source.
        ImportError: when the source needs an extra that is not installed.
        ConnectionError: when the hub cannot be reached.

    Example:
        >>> import json, pathlib, tempfile
        >>> rows = [{"question": "What is 1 + 2?", "answer": "#### 3"}, {"question": "2 * 4?", "answer": "#### 8"}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "problems.jsonl")
        ...     _ = path.write_text("\n".join(map(json.dumps, rows)))
        ...     problems = load_prompts(path, prompt_column="question", answer_format="hashes")
        >>> [(problem.prompt_id, problem.prompt, problem.answer) for problem in problems]
        [('0', 'What is 1 + 2?', '3'), ('1', '2 * 4?', '8')]
    """
    if n is not None and n < 1:
        raise ValueError(f"n is {n}: ask for at least one problem")
    name = str(source)
    if name == "embedded":
        return _embedded(required(n, name), rng, settings)
    if Path(source).suffix in _SUFFIXES:
        mapping, _ = _column_settings(settings, name, ())
        return file_problems(Path(source), mapping, n, rng)
    folder = Path(source).is_dir()
    if not folder and ":" in name:
        return _user_problems(name, n, rng, settings)
    if not folder and (name.startswith(_PREFIX) or _is_reasoning_gym_task(name)):
        return _reasoning_gym_problems(name.removeprefix(_PREFIX), required(n, name), rng, **settings)
    if folder or "/" in name:
        mapping, options = _column_settings(_known_settings(name) | settings, name, _HUB)
        return _hub_problems(name, mapping, n, rng, **options)
    raise ValueError(
        f'source {name!r} is not known: give "embedded", a {", ".join(_SUFFIXES)} file, '
        "reasoning-gym/TASK (with the extra gradstats[tasks]), module:function, path/to/file.py:function, or a data "
        "set id such as openai/gsm8k"
    )


def generates(name: str) -> bool:
    """Return whether the name of a source says that it generates its problems."""
    return name == "embedded" or name.startswith(_PREFIX)


def is_on_hub(source: str | Path) -> bool:
    """Return whether the problems of a source come from a repository on the hub."""
    name = str(source)
    elsewhere = generates(name) or Path(source).suffix in _SUFFIXES or ":" in name
    return "/" in name and not elsewhere and not Path(source).exists()


def _column_settings(settings: Settings, name: str, others: tuple[str, ...]) -> tuple[ColumnMapping, Settings]:
    """Split the settings of a source into its column mapping and the others."""
    settings = {key: value for key, value in settings.items() if value is not None}
    like = settings.pop("like", None)
    _refuse_unknown_settings(settings, (*_COLUMNS, "like", *others), name)
    settings = (_columns_like(like) if like is not None else {}) | settings
    mapping = ColumnMapping(**{key: value for key, value in settings.items() if key in _COLUMNS})
    return mapping, {key: value for key, value in settings.items() if key in others}


def _embedded(n: int, seed: int, settings: Settings) -> list[Problem]:
    known = [name for name in signature(generate_problems).parameters if name not in ("n", "rng")]
    _refuse_unknown_settings(settings, known, "embedded")
    try:
        generated = generate_problems(n, rng=seed, **settings)
    except TypeError as error:
        raise ValueError(f"the embedded problems do not accept the settings {settings}: {error}") from error
    return [
        Problem(item.prompt_id, item.prompt, item.answer, "embedded", {"difficulty": item.difficulty})
        for item in generated
    ]


def _refuse_unknown_settings(settings: Settings, known: Sequence[str], name: str) -> None:
    """Refuse the settings that a source does not have, with the nearest that it has."""
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}: {nearest_or_all(setting, known, 'it has')}")


def required(n: int | None, name: str) -> int:
    """Return the number of problems of a source that generates them, and has no number of its own."""
    if n is None:
        raise ValueError(f"n is missing: {name!r} generates its problems, so state how many (n=100, --n 100)")
    if n > _MOST_GENERATED:
        raise ValueError(f"n is {n}: {name!r} generates at most {_MOST_GENERATED} problems, so ask for fewer")
    return n


def check(experiment: Experiment) -> None:
    """Refuse problems of an experiment that are generated, and of which it does not say how many."""
    section = experiment.prompts
    if generates(section.source):
        with naming("prompts"):
            required(section.n, section.source)
