"""User-defined functions, named "module:function" or "path/to/file.py:function": where they may come from.

Rewards, sources of problems and estimators share these rules. Whether a name in a file may be used at all
is decided in :mod:`gradstats.config.trust`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

# ASCII only: Python treats some characters that look different (full-width letters) as the same identifier.
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")
_FILE = re.compile(rf"(?P<file>(?:.*/)?(?P<module>[^/]*)\.py):(?P<function>{_WORD})")

_STANDARD = sys.stdlib_module_names | set(sys.builtin_module_names)

#: Folders of experiment files whose steps are running now, the innermost last.
_folders: list[Path] = []


class UserCodeError(ImportError):
    """A user-defined function cannot be imported, or may not be used."""


class MissingModuleError(UserCodeError):
    """There is no module of a name where modules are searched for."""


class UserFunctionError(ValueError):
    """A function of the user's raises an error."""


class UserLabelError(ValueError):
    """A name is not of the form "module:function", or its parameters are not those of the function."""


@contextmanager
def code_beside(folder: Path | None) -> Iterator[None]:
    """Search the folder of an experiment file for modules as well, while the context is open; None adds nothing."""
    if folder is None:
        yield
        return
    _folders.append(folder.resolve())
    try:
        yield
    finally:
        _folders.pop()


def import_function(name: str, what: str) -> Callable[..., Any]:
    """Import a user's function.

    The module is searched for beside the experiment file, then in the working directory, then among what is installed;
    a file beside the experiment file, then in the working directory, and is imported as a module of its folder.
    Python's standard library and this package are refused: most of what they hold does something other than score,
    list or weigh, and a name such as ``cProfile:run`` would execute the text that it is given.
    """
    module_name, function_name, folder = _found(name, what)
    try:
        module = _import(module_name, folder)
        function = getattr(module, function_name)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, (ImportError, AttributeError)) else error
        raise UserCodeError(f"{what} {name!r} cannot be imported: {reason}") from error
    if not callable(function):
        raise UserCodeError(
            f"{what} {name!r} is of type {type(function).__name__}, not a function: give the name of a function"
        )
    return function


@contextmanager
def errors_of_own_code(function: Callable[..., Any], what: str) -> Iterator[None]:
    """Say of an error in the file of a function that is the user's where it happened, while the context is open.

    A ``ValueError`` says itself what is wrong.
    """
    try:
        yield
    except (ValueError, UserCodeError):
        raise
    except Exception as error:
        file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        if not lines or function.__module__.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise UserFunctionError(
            f"{what} fails in its own code, {file}, line {lines[-1]}: {type(error).__name__}: {error}; "
            "GRADSTATS_TRACEBACK=1 shows the whole traceback"
        ) from error


def look_in(folders: Sequence[Path]) -> None:
    """Search for modules in these folders from now on; for the worker process, which has its parent's."""
    _folders[:] = reversed(folders)


def search_folders() -> list[Path]:
    """Where a user's modules are searched for before what is installed."""
    return list(dict.fromkeys([*reversed(_folders), Path.cwd()]))


def _found(name: str, what: str) -> tuple[str, str, Path | None]:
    """Return the module, the function and the folder that holds the module; None for an installed one."""
    match = _FILE.fullmatch(name)
    if match is not None and re.fullmatch(_WORD, match["module"]):
        path = _file_of(match["file"], name, what)
        return match["module"], match["function"], path.parent
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserLabelError(
            f"{what} {name!r} is not of the form module:function or path/to/file.py:function: write the names of "
            "module and function with letters, digits and underscores of ASCII"
        )
    return match[1], match[2], _folder_of(match[1].partition(".")[0], name, what)


def _file_of(file: str, name: str, what: str) -> Path:
    """Return the whole path of a file of the user's, which may be relative to any of the folders searched."""
    written = Path(file).expanduser()
    for folder in search_folders():
        path = folder / written  # the path itself where it is absolute
        if path.is_file():
            break
    else:
        listed = " and ".join(map(str, search_folders()))
        looked = "" if written.is_absolute() else f" in {listed}"
        raise MissingModuleError(f"{what} {name!r} cannot be imported: there is no file {file}{looked}")
    path = path.resolve()
    if path.stem in _STANDARD or _in_standard_library(path):
        raise UserCodeError(
            f"{what} {name!r} has the name of a module of Python's standard library, or belongs to it: rename the file"
        )
    if path.is_relative_to(Path(__file__).parents[1]):
        raise UserCodeError(f"{what} {name!r} belongs to this package: give its name without a file")
    return path


def _folder_of(top: str, name: str, what: str) -> Path | None:
    """Return the folder that holds a top-level module; None for an installed one."""
    if top in _STANDARD:
        raise UserCodeError(
            f"{what} {name!r} belongs to Python's standard library, which is never used: write a function of your own "
            "in a module beside the experiment file"
        )
    if top == __name__.partition(".")[0]:
        raise UserCodeError(f"{what} {name!r} belongs to this package: give its name without a module")
    # As in Python itself, a folder without __init__ gives way to a module or package of that name elsewhere.
    local = {folder: PathFinder.find_spec(top, [str(folder)]) for folder in search_folders()}
    for folder, found in local.items():
        if found is not None and found.origin is not None:
            return folder
    spec = PathFinder.find_spec(top)
    bare = next((folder for folder, found in local.items() if found is not None), None)
    if bare is not None and (spec is None or spec.origin is None):
        return bare
    if spec is None:
        listed = " and ".join(map(str, search_folders()))
        raise MissingModuleError(
            f"{what} {name!r} cannot be imported: there is no module {top!r} in {listed}, and none is installed"
        )
    if spec.origin is not None and _in_standard_library(Path(spec.origin)):
        raise UserCodeError(f"{what} {name!r} belongs to Python's standard library, which is never used")
    return None


def _in_standard_library(path: Path) -> bool:
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    resolved = path.resolve()
    return resolved.is_relative_to(standard) and "site-packages" not in resolved.relative_to(standard).parts


def _import(module_name: str, folder: Path | None) -> Any:
    """Import a module from a folder, or from what is installed."""
    top = module_name.partition(".")[0]
    loaded = sys.modules.get(top)
    if folder is None:
        return importlib.import_module(module_name)
    if loaded is not None and not _lies_in(loaded, folder):
        origin = getattr(loaded, "__file__", None) or "elsewhere"
        raise UserCodeError(f"another module {top!r} is in use already ({origin}): rename the one in {folder}")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(module_name)
    finally:
        sys.path.remove(str(folder))


def _lies_in(module: Any, folder: Path) -> bool:
    """Whether a loaded module, or a package without an ``__init__``, lies directly in a folder."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(place is not None and folder in Path(place).resolve().parents for place in places)
