"""The questions by name: those of this package, of installed packages, and a user's own, ``module:question``."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gradstats.system.user_code import import_function

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from gradstats.analyses.declaration import Analysis, FurtherTable
    from gradstats.config.experiment import Experiment

#: The files of this folder that declare an ``ANALYSIS``, in the order in which runs ask and lists show them.
ANALYSES = (
    "variance",
    "alpha",
    "alpha_by_block",
    "variance_by_block",
    "group_sizes",
    "allocation",
    "batch_size",
    "spike",
    "length_bins",
    "success_bins",
    "curve",
    "optimal_baselines",
    "critic",
    "ratios",
    "shift",
    "length_reward",
    "tokens",
    "proxies",
    "profile",
    "plan",
)
#: The questions of a trainer's log, a file each as well, in the order in which ``gradstats log`` answers them; spike is
#: asked of a measurement, too.
OF_LOGS = ("silent_groups", "log_noise", "log_lengths", "mismatch", "drift", "spike")
#: The entry points by which an installed package declares analyses of its own: name = "module:ANALYSIS".
_ENTRY_POINTS = "gradstats.analyses"
#: The questions whose answers lie in the folder of a run itself, those of all others in its ``tables``.
OF_EVERY_RUN = ("variance", "alpha")
#: A user's own that this process has imported: module:question → analysis.
_own: dict[str, Analysis] = {}


def questions() -> dict[str, str]:
    """Return name → question; those of this package are read from their files without importing these."""
    found = {}
    for name in ANALYSES:
        text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        found[name] = (ast.get_docstring(ast.parse(text)) or name).partition("\n")[0]
    return found | {one.name: one.question for one in _installed().values()}


def names() -> list[str]:
    """Return the names of all questions."""
    return [*ANALYSES, *(one.name for one in _entries())]


def is_known(name: str) -> bool:
    """Return whether a question has this name; packages are searched for names that are not of this one."""
    return name in ANALYSES or name in names()


def get(name: str) -> Analysis:
    """Return the analysis of a name, or a user's own from ``module:question``.

    Raises:
        KeyError: for an unknown name, with the nearest one.
        ImportError, ValueError: for a user's own that cannot be used, see :mod:`gradstats.system.user_code`.
        TypeError: for a user's own that is no analysis.
    """
    from gradstats.analyses.declaration import Analysis

    if name in ANALYSES or name in OF_LOGS:
        return import_module(f"gradstats.analyses.{name}").ANALYSIS
    if ":" in name:
        found = import_function(name, "question")
        if not isinstance(found, Analysis):
            from gradstats.config.options import of_type

            raise TypeError(f"question {name!r} is {of_type(found)}: name a gradstats.analyses.Analysis")
        _own[name] = found
        return found
    if name in _installed():
        return _installed()[name]
    nearest = difflib.get_close_matches(name.replace("-", "_"), names(), 1, 0.4)
    proposed = f"did you mean {nearest[0]}? " if nearest else ""
    raise KeyError(f"there is no question {name!r}: {proposed}`gradstats ask` lists them all")


def all_analyses() -> list[Analysis]:
    """Return all analyses but a user's own, in order."""
    return [get(name) for name in names()]


def of_this_version() -> list[Analysis]:
    """Return all analyses but a user's own, those of logs last."""
    return [get(name) for name in dict.fromkeys([*names(), *OF_LOGS])]


def of_answer(question: str) -> Analysis | FurtherTable | None:
    """Return what declares the table of an answer, by its question or, for a table beside another, by its name.

    A user's own is known where this process has imported it: a run may come from someone else, and reading its answers
    runs no code that it names. None for one that is not known.
    """
    if question in ANALYSES or question in OF_LOGS or question in _installed():
        return get(question)
    if ":" in question:
        return _own.get(question)
    every = [*of_this_version(), *_own.values()]
    tables = (table for one in every for table in one.further)
    return next((table for table in tables if table.name == question), None)


def check(experiment: Experiment) -> None:
    """Refuse questions of an experiment that are not known, and settings that they do not take."""
    from gradstats import data
    from gradstats.config.validation import naming

    for name, settings in experiment.analyses.items():
        with naming("analyses"):
            analysis = get(name)
        if settings is not False or analysis.section:
            with naming(f"analyses.{name}"):
                analysis.refuse_settings(settings if isinstance(settings, dict) else {}, experiment)
    published = experiment.length_scaling.published
    if published is not None and published not in data.names():
        raise ValueError(f"length_scaling.published is {published!r}: choose one of {', '.join(data.names())}")


def _entries() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=_ENTRY_POINTS)


@cache
def _installed() -> dict[str, Analysis]:
    return {one.name: one.load() for one in _entries()}
