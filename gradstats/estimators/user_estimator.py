"""User-defined estimators, named "module:function" without being registered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradstats.estimators.estimator import Definition
from gradstats.system.user_code import import_function


def user_definition(name: str, registered: Iterable[Definition]) -> Definition:
    """Return the definition behind "module:function", a function ``Batch → advantages``.

    The requirements of :func:`gradstats.estimators.register` hold here as well. A function that is not registered must
    return one advantage for each completion, and its bias is unknown.

    Args:
        name: the module, a colon, the function; without parameters.
        registered: the known definitions, including those that the module registers when it is imported.

    Raises:
        ImportError, ValueError: as for :func:`gradstats.system.user_code.import_function`.
    """
    function = import_function(name, "the estimator")
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
