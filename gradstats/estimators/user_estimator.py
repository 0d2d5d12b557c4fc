"""Estimators of the user's own, named "module:function" without being registered."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradstats.estimators.estimator import Definition


def user_definition(name: str, registered: Iterable[Definition]) -> Definition:
    """The definition behind "module:function", a function ``Batch → advantages``.

    What :func:`gradstats.estimators.register` was told about the function holds here as well. A function that is not
    registered returns one advantage for each completion, and nothing is known of its bias.

    Args:
        name: the module, a colon, the function; without parameters.
        registered: the definitions that are known, those that the module registers when it is imported included.

    Raises:
        ImportError: when the module or the function cannot be found; states where the module was looked for.
    """
    function = _imported(name)
    known = next((definition for definition in registered if definition.function is function), None)
    if known is not None:
        return replace(known, name=name)
    return Definition(
        name=name,
        function=function,
        baseline="user's own",
        scale="–",
        bias="not stated",
        source="user's own",
        level="sequence",
        needs=lambda parameters: (),
        across_groups=lambda parameters: False,
        expected_scale=lambda group_size, parameters: None,
        checked=False,
    )


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"the estimator {name!r} cannot be imported: {error} (looked in {here})") from error
    finally:
        sys.path.remove(here)
    return function
