"""Parameters that mean the same in every estimator and part, and what values they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

Rule = tuple[Callable[[Any], bool], str]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))


def _one_of(*choices: str) -> Rule:
    return lambda value: value in choices, " or ".join(repr(choice) for choice in choices)


def _whole(least: int) -> Rule:
    said = f"a whole number of at least {least}"
    return lambda value: isinstance(value, int | np.integer) and bool(value >= least), said


SWITCH: Rule = (lambda value: isinstance(value, bool | np.bool_), "True or False")
FINITE: Rule = (_finite, "a finite number")
POSITIVE: Rule = (lambda value: _finite(value) and value > 0, "a finite number above 0")
NOT_NEGATIVE: Rule = (lambda value: _finite(value) and value >= 0, "a finite number of at least 0")
SHARE: Rule = (lambda value: _finite(value) and 0 <= value <= 1, "a number between 0 and 1")

RULES: dict[str, Rule] = {
    "loo": SWITCH,
    "scope": _one_of("group", "batch"),
    "singleton": _one_of("zero", "reward", "nan"),
    "b": (lambda value: _finite(value) or value == "optimal", "a number or 'optimal'"),
    "alpha": FINITE,
    "delta": FINITE,
    "tau": POSITIVE,
    "ddof": _whole(0),
    "eps": NOT_NEGATIVE,
    "normalize": SWITCH,
    "shrink_factor": SWITCH,
    "gamma": SHARE,
    "lam": SHARE,
    "whiten": SWITCH,
    "k": _whole(1),
    "energy": _one_of("logit", "exact"),
    "zero_tail": SWITCH,
    "eps_low": NOT_NEGATIVE,
    "eps_high": NOT_NEGATIVE,
    "dual_clip": POSITIVE,
    "convention": _one_of("verl", "trl"),
    "max_tokens": POSITIVE,
    "beta": NOT_NEGATIVE,
    "kind": _one_of("k1", "k2", "k3"),
}


def suggest(name: str, known: list[str]) -> str:
    """A sentence that offers the nearest known name, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"


def bind_parameters(
    what: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    skip: int,
) -> dict[str, Any]:
    """All parameters of ``function`` after its first ``skip`` (its data), with defaults filled in.

    Args:
        what: how the function is called in messages, as in "estimator kimi".
        function: the function whose signature counts.
        arguments: positional values.
        keywords: values by name.
        skip: how many leading arguments are data and no parameters.

    Raises:
        TypeError: for an unknown parameter or one that is required and missing, by name.
    """
    declared = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in declared]
    if len(arguments) > len(names):
        raise TypeError(f"{what} takes {len(names)} parameters ({', '.join(names)}), got {len(arguments)}")
    given = dict(zip(names, arguments, strict=False))
    for name, value in keywords.items():
        if name not in names:
            remedy = suggest(name, names) if names else "it has no parameters"
            raise TypeError(f"{what} has no parameter {name!r}: {remedy}")
        if name in given:
            raise TypeError(f"{what} got {name!r} twice, by position and by name")
        given[name] = value
    missing = [p.name for p in declared if p.name not in given and p.default is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{what} needs a value for {' and '.join(missing)}: {missing[0]} has no default")
    return {p.name: _as_declared(p, given.get(p.name, p.default)) for p in declared}


def _as_declared(parameter: inspect.Parameter, value: Any) -> Any:
    """Whole numbers given where a ``float`` is declared become one, so that labels and types do not vary."""
    declared = str(parameter.annotation).startswith("float") or parameter.annotation is float
    if declared and isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    return value


def check_parameters(what: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    """Refuse values outside what a parameter of that name means anywhere in the family.

    Raises:
        ValueError: naming the parameter, its value and what it takes.
    """
    declared = inspect.signature(function).parameters
    for name, value in parameters.items():
        left_out = value is None and declared[name].default is None
        allowed, said = RULES[name]
        if not left_out and not allowed(value):
            raise ValueError(f"{what}: {name} must be {said}, got {value!r}")


def describe(name: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """``name(parameter=value, …)`` with the parameters that have no default or differ from it."""
    signature = inspect.signature(function).parameters
    told = [f"{key}={_short(value)}" for key, value in parameters.items() if value != signature[key].default]
    return f"{name}({', '.join(told)})" if told else name


def _short(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    return str(value)
