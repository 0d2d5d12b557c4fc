"""Problems from a user-defined function, named "module:function"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gradstats.prompts.problem import Problem, Settings
from gradstats.system.user_code import import_function

_FIELDS = ("prompt_id", "prompt", "answer")


def user_problems(name: str, n: int | None, seed: int, settings: Settings) -> list[Problem]:
    """Call the user's function as ``function(n, rng=seed, **settings)``.

    It returns problems, or mappings with the fields of :class:`gradstats.prompts.Problem`, of which ``reward`` and
    ``details`` may be left out; ``n`` is None when all problems are requested.

    Raises:
        ImportError: when the function cannot be imported or may not be used, see :mod:`gradstats.system.user_code`.
        ValueError: when it fails, returns something other than problems, or does not return ``n`` of them.
    """
    function = import_function(name, "the source of problems")
    try:
        returned = function(n, rng=seed, **settings)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the source of problems {name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(returned, Iterable):
        raise ValueError(f"the source of problems {name!r} returned a {type(returned).__name__}: return a list")
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
