"""Estimators by name: the decorators that register one, and the functions that find it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from gradstats.config.options import read_label
from gradstats.estimators.batch import COLUMN, HOW_TO_GET, Batch
from gradstats.estimators.estimator import (
    SEQUENCE_SUM,
    Definition,
    Estimator,
    Level,
    Parameters,
    as_factory,
    bind_parameters,
    check_parameters,
    suggest,
)
from gradstats.system.lazy_imports import pd
from gradstats.system.user_code import import_function

P = ParamSpec("P")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., object])

DEFINITIONS: dict[str, Definition] = {}
ALIASES: dict[str, str] = {}


def estimator(
    name: str,
    *,
    display: str,
    baseline: str,
    bias: str,
    source: str,
    scale: str = "–",
    level: Level = "sequence",
    needs: tuple[str, ...] | Callable[[Parameters], tuple[str, ...]] = (),
    across_groups: bool | Callable[[Parameters], bool] = False,
    expected_scale: Callable[[int, Parameters], float | None] = lambda group_size, parameters: None,
    aliases: tuple[str, ...] = (),
    unit: str | Callable[[Parameters], str] = SEQUENCE_SUM,
) -> Callable[[Callable[Concatenate[Batch, P], np.ndarray]], Callable[P, Estimator]]:
    """Register a built-in estimator and turn its function into the factory of that name."""

    def decorate(function: Callable[Concatenate[Batch, P], np.ndarray]) -> Callable[P, Estimator]:
        definition = Definition(
            name=name,
            function=function,
            baseline=baseline,
            scale=scale,
            bias=bias,
            source=source,
            level=level,
            needs=_as_function(needs),
            across_groups=_as_function(across_groups),
            expected_scale=expected_scale,
            checked=True,
            unit=_as_function(unit),
            display=display,
        )
        _add(definition)
        ALIASES.update(dict.fromkeys(aliases, name))

        return cast("Callable[P, Estimator]", as_factory(definition, _make))

    return decorate


def _as_function(value: V | Callable[[Parameters], V]) -> Callable[[Parameters], V]:
    """Turn a value that depends on no parameter into a function of the parameters; leave a function unchanged."""
    if callable(value):
        return cast("Callable[[Parameters], V]", value)
    return lambda parameters: value


def _add(definition: Definition) -> None:
    if definition.name in DEFINITIONS or definition.name in ALIASES:
        raise ValueError(f"an estimator called {definition.name!r} is registered already: choose another name")
    DEFINITIONS[definition.name] = definition


def _make(definition: Definition, arguments: tuple[object, ...], keywords: Parameters) -> Estimator:
    what = f"estimator {definition.name}"
    parameters = bind_parameters(what, definition.function, arguments, keywords, skip=1)
    if definition.checked:
        check_parameters(what, definition.function, parameters)
    definition.needs(parameters)  # a parameter that is itself the label of an estimator is refused here
    return Estimator(definition, parameters)


def register(
    name: str,
    *,
    level: str = "sequence",
    needs: Sequence[str] = (),
    across_groups: bool = False,
    expected_scale: float | int | Callable[[int], float | None] | None = None,
    baseline: str = "user's own",
    scale: str = "–",
    bias: str = "not stated",
    source: str = "user's own",
    unit: str = SEQUENCE_SUM,
    display: str = "",
) -> Callable[[F], F]:
    """Register an estimator of your own: a decorator for a function ``Batch → advantages``.

    The function's parameters after the batch become parameters of the estimator.

    Args:
        name: the name under which :func:`gradstats.estimators.get` finds it.
        level: "sequence" when it returns (N,), "token" when it returns (N, T).
        needs: Batch fields that are required; a batch without them is refused with the remedy. A user-defined column
            is named as in ``"column:salience"`` and read as ``batch.columns["salience"]``.
        across_groups: True when a group's advantages depend on other groups of the batch; its variance is then
            measured from whole batches.
        expected_scale: c with E[ĝ] = c·∇J at every group size, where it is known (1.0: unbiased), or a function
            of the group size.
        baseline: what is subtracted, in words, for the table.
        scale: what the difference is divided by, in words, for the table.
        bias: what E[ĝ] is, in words, for the table.
        source: paper or code, for the table.
        unit: what the gradient is measured in. Leave the default where advantages have the unit of the rewards;
            otherwise name what they are divided by, as in ``"sequence_sum / group_std"``. Figures of variances show one
            unit.
        display: what figures and tables of a paper call it; its label by default.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ValueError: when the name is taken, or ``needs`` or ``level`` is unknown.

    Example:
        >>> from gradstats import estimators
        >>> @estimators.register("half_reward", expected_scale=0.5)
        ... def half_reward(batch, factor=0.5):
        ...     return factor * batch.rewards
        >>> estimators.get("half_reward").advantages(estimators.Batch([1, 0], [3, 5], ["a", "a"]))
        array([0.5, 0. ])
    """
    unknown = [need for need in needs if need not in HOW_TO_GET and not need.startswith(COLUMN)]
    if unknown:
        remedy = suggest(unknown[0], list(HOW_TO_GET))
        raise ValueError(f"needs names {unknown[0]!r}, which is not an optional field of Batch: {remedy}")
    if level not in ("sequence", "token"):
        raise ValueError(f"level must be 'sequence' or 'token', got {level!r}")

    def decorate(function: F) -> F:
        _add(
            Definition(
                name=name,
                function=function,
                baseline=baseline,
                scale=scale,
                bias=bias,
                source=source,
                level=cast("Level", level),
                needs=lambda parameters: tuple(needs),
                across_groups=_as_function(across_groups),
                expected_scale=lambda group_size, parameters: (
                    expected_scale(group_size) if callable(expected_scale) else expected_scale
                ),
                checked=False,
                unit=_as_function(unit),
                display=display,
            )
        )
        return function

    return decorate


def get_estimator(name: str | Estimator, **parameters: object) -> Estimator:
    """Find an estimator that is not a recipe, by name or label; see :func:`gradstats.estimators.get`."""
    if not isinstance(name, str):
        if parameters:
            raise TypeError(f"{name.label} has its parameters already: give {', '.join(parameters)} with a name")
        return name
    base, from_label = read_label(name)
    made = _make(get_definition(base), (), {**from_label, **parameters})
    return made if parameters else replace(made, written=name)


def get_definition(name: str) -> Definition:
    """Return the definition registered under a canonical name or an alias, or that of "module:function"."""
    if ":" in name:
        return user_definition(name)
    base = ALIASES.get(name, name)
    if base not in DEFINITIONS:
        raise KeyError(f"no estimator is called {base!r}: {suggest(base, [*DEFINITIONS, *ALIASES])}")
    return DEFINITIONS[base]


def user_definition(name: str) -> Definition:
    """Return the definition behind "module:function", a function ``Batch → advantages``.

    A function that is not registered must return one advantage for each completion, and its bias is unknown.
    """
    function = import_function(name, "the estimator")
    known = next((definition for definition in DEFINITIONS.values() if definition.function is function), None)
    return Definition(name=name, function=function) if known is None else replace(known, name=name)


def names() -> list[str]:
    """Return the canonical names of all registered estimators, in the order of the table.

    Example:
        >>> from gradstats import estimators
        >>> estimators.names()[:6]
        ['reinforce', 'constant', 'batch_mean', 'group_mean', 'rloo', 'dr_grpo']
    """
    return list(DEFINITIONS)


def table() -> pd.DataFrame:
    """Return all registered estimators, one row each.

    As baselines they are all compared at one aggregation, ``sequence_sum``.

    Returns:
        A frame with the columns ``name``, ``baseline``, ``scale``, ``ratio + clip``, ``aggregation``, ``needs``
        (fields of the Batch), ``bias`` (what E[ĝ] is) and ``source``.

    Example:
        >>> from gradstats import estimators
        >>> frame = estimators.table().set_index("name")
        >>> frame.loc["norm_weighted", ["baseline", "needs"]].to_list()
        ['group mean weighted by ‖S‖²', 'sq_norms']
    """
    rows = []
    for definition in DEFINITIONS.values():
        defaults = default_parameters(definition)
        rows.append(
            {
                "name": definition.name,
                "baseline": definition.baseline,
                "scale": definition.scale,
                "ratio + clip": "none",
                "aggregation": SEQUENCE_SUM,
                "needs": ", ".join(definition.needs(defaults)) or "rewards",
                "bias": definition.bias,
                "source": definition.source,
            }
        )
    return pd.DataFrame(rows)


def default_parameters(definition: Definition) -> dict[str, object]:
    """Return the parameters of an estimator that have defaults."""
    declared = list(inspect.signature(definition.function).parameters.values())[1:]
    return {p.name: p.default for p in declared if p.default is not inspect.Parameter.empty}


def to_be_filled(name: str) -> str:
    """Return a registered name with a place for each parameter that needs a value.

    >>> to_be_filled("kimi"), to_be_filled("rloo")
    ('kimi(tau=…)', 'rloo')
    """
    definition = get_definition(name)
    declared = list(inspect.signature(definition.function).parameters)[1:]
    missing = [one for one in declared if one not in default_parameters(definition)]
    return f"{name}({', '.join(f'{one}=…' for one in missing)})" if missing else name
