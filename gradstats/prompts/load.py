"""Load problems from any source, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from inspect import signature
from pathlib import Path

from gradstats.prompts.columns import ColumnMapping
from gradstats.prompts.embedded import generate_problems
from gradstats.prompts.files import SUFFIXES, file_problems
from gradstats.prompts.hub import hub_problems
from gradstats.prompts.known_sets import columns_like, known_settings
from gradstats.prompts.problem import Problem, Settings
from gradstats.prompts.reasoning_tasks import is_reasoning_gym_task, reasoning_gym_problems
from gradstats.prompts.user_source import user_problems

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
            :func:`gradstats.prompts.user_source.user_problems`.
        n: number of prompts; all of a file or data set by default. It is required for generated problems. A subset is
            seeded and keeps the order of the source; a larger ``n`` only adds to it.
        rng: seed of the subset, or of the generator.
        **settings: options of the source, as in ``prompt_column="question", answer_format="hashes"``. For files and the
            hub: ``prompt_column``, ``answer_column``, ``id_column``, ``answer_format``, ``skip_unparsable``,
            ``drop_repeats`` (see :class:`gradstats.prompts.columns.ColumnMapping`), and ``like``, the id of a known
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
        return _embedded(_required(n, name), rng, settings)
    if Path(source).suffix in SUFFIXES:
        mapping, _ = _column_settings(settings, name, ())
        return file_problems(Path(source), mapping, n, rng)
    folder = Path(source).is_dir()
    if not folder and ":" in name:
        return user_problems(name, n, rng, settings)
    if not folder and (name.startswith(_PREFIX) or is_reasoning_gym_task(name)):
        return reasoning_gym_problems(name.removeprefix(_PREFIX), _required(n, name), rng, **settings)
    if folder or "/" in name:
        mapping, options = _column_settings(known_settings(name) | settings, name, _HUB)
        return hub_problems(name, mapping, n, rng, **options)
    raise ValueError(
        f'source {name!r} is not known: give "embedded", a {", ".join(SUFFIXES)} file, '
        "reasoning-gym/TASK (with the extra gradstats[tasks]), module:function, path/to/file.py:function, or a data "
        "set id such as openai/gsm8k"
    )


def is_on_hub(source: str | Path) -> bool:
    """Return whether the problems of a source come from a repository on the hub."""
    name = str(source)
    elsewhere = name == "embedded" or Path(source).suffix in SUFFIXES or name.startswith(_PREFIX) or ":" in name
    return "/" in name and not elsewhere and not Path(source).exists()


def _column_settings(settings: Settings, name: str, others: tuple[str, ...]) -> tuple[ColumnMapping, Settings]:
    """Split the settings of a source into its column mapping and the others."""
    settings = {key: value for key, value in settings.items() if value is not None}
    like = settings.pop("like", None)
    _refuse_unknown(settings, (*_COLUMNS, "like", *others), name)
    settings = (columns_like(like) if like is not None else {}) | settings
    mapping = ColumnMapping(**{key: value for key, value in settings.items() if key in _COLUMNS})
    return mapping, {key: value for key, value in settings.items() if key in others}


def _embedded(n: int, seed: int, settings: Settings) -> list[Problem]:
    known = [name for name in signature(generate_problems).parameters if name not in ("n", "rng")]
    _refuse_unknown(settings, known, "embedded")
    try:
        generated = generate_problems(n, rng=seed, **settings)
    except TypeError as error:
        raise ValueError(f"the embedded problems do not accept the settings {settings}: {error}") from error
    return [
        Problem(item.prompt_id, item.prompt, item.answer, "embedded", {"difficulty": item.difficulty})
        for item in generated
    ]


def _refuse_unknown(settings: Settings, known: Sequence[str], name: str) -> None:
    """Refuse the settings that a source does not have, with the nearest that it has."""
    for setting in settings:
        if setting not in known:
            near = get_close_matches(setting, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{name} has no setting {setting!r}: {hint}")


def _required(n: int | None, name: str) -> int:
    if n is None:
        raise ValueError(f"n is missing: {name!r} generates its problems, so state how many")
    if n > _MOST_GENERATED:
        raise ValueError(f"n is {n}: {name!r} generates at most {_MOST_GENERATED} problems, so ask for fewer")
    return n
