"""Functions of the user's in commands on a run: those beside its experiment file are found from any folder."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ParamSpec

from gradstats.system.user_code import MissingModuleError, UserCodeError, code_beside

P = ParamSpec("P")


def with_code_of_run(command: Callable[P, None]) -> Callable[P, None]:
    """Let a command whose first argument is a run find modules beside its experiment file, see :func:`code_of_run`.

    Args:
        command: a command with an option ``trust``.
    """
    signature = inspect.signature(command)

    @functools.wraps(command)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> None:
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        with code_of_run(next(iter(given.arguments.values())), bool(given.arguments["trust"])):
            command(*arguments, **options)

    return wrapped


@contextmanager
def code_of_run(source: object, trust: bool) -> Iterator[None]:
    """Search the folder of a run's experiment file for modules as well, while the context is open.

    The run records where that folder is. A run may come from someone else, who may have recorded any folder: it is
    searched only with permission.

    Args:
        source: a run directory; for anything else nothing is added.
        trust: search the recorded folder.

    Raises:
        MissingModuleError: for a module that is not found, with the recorded folder where there is one.
    """
    with code_beside(_recorded_folder(source)) if trust else nullcontext():
        try:
            yield
        except MissingModuleError as error:
            folder = None if trust else _recorded_folder(source)
            if folder is None:
                raise
            raise UserCodeError(
                f"{error}; the experiment file of {source} was in {folder}: add --trust to search there as well"
            ) from error


def _recorded_folder(source: object) -> Path | None:
    from gradstats.runs.directory import experiment_folder  # takes longer than looking a label up

    return experiment_folder(source) if isinstance(source, Path) else None
