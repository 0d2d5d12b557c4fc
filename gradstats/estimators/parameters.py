"""Parameters that mean the same in every estimator and recipe component, and the values that they accept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeGuard

import numpy as np

from gradstats.config.labels import written

#: Values by name; a user's own estimator may take values of any type.
Parameters = Mapping[str, Any]
#: Whether a value is accepted, and what is accepted, in words.
Rule = tuple[Callable[[object], bool], str]


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))


def _one_of(*choices: str) -> Rule:
    return lambda value: value in choices, " or ".join(repr(choice) for choice in choices)


def _whole(least: int) -> Rule:
    accepted = f"a whole number of at least {least}"
    return lambda value: isinstance(value, int | np.integer) and bool(value >= least), accepted


SWITCH: Rule = (lambda value: isinstance(value, bool | np.bool_), "True or False")
FINITE: Rule = (_finite, "a finite number")
POSITIVE: Rule = (lambda value: _finite(value) and value > 0, "a finite number above 0")
NOT_NEGATIVE: Rule = (lambda value: _finite(value) and value >= 0, "a finite number of at least 0")
SHARE: Rule = (lambda value: _finite(value) and 0 <= value <= 1, "a number between 0 and 1")

RULES: dict[str, Rule] = {
    "loo": SWITCH,
    "scope": _one_of("group", "batch"),
    "off_policy": SWITCH,
    "truncate": POSITIVE,
    "singleton": _one_of("zero", "reward", "nan"),
    "b": (lambda value: _finite(value) or value == "optimal", "a number or 'optimal'"),
    "alpha": (lambda value: _finite(value) or value == "within_prompt", "a finite number or 'within_prompt'"),
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
    "max": POSITIVE,
    "cache": POSITIVE,
    "share": SHARE,
    "threshold": NOT_NEGATIVE,
    "rescale": SWITCH,
    "dynamic_sampling": SWITCH,
    "low": POSITIVE,
    "high": POSITIVE,
    "over": _one_of("mean", "sum", "max"),
    "baseline": (lambda value: isinstance(value, str) and bool(value), "the label of an estimator"),
}


# Similarity from which on a name counts as misspelt; at 0.5, "dapo" passes for "opo".
_NEAR = 0.7


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one stands for; None where none is near."""
    near = get_close_matches(name, list(known), cutoff=_NEAR)
    # Letters that changed places, as in "gpro", are likelier than others that are equally similar.
    return min(near, key=lambda one: sorted(one) != sorted(name), default=None)


def suggest(name: str, known: list[str]) -> str:
    """Suggest the nearest known name, or list all of them where none is near."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(known))}"


def bind_parameters(
    what: str,
    function: Callable[..., object],
    arguments: tuple[object, ...],
    keywords: Parameters,
    skip: int,
) -> dict[str, object]:
    """Bind values to the parameters of ``function`` and fill in the defaults.

    Args:
        what: the name of the function in messages, as in "estimator kimi".
        function: the function whose signature is used.
        arguments: positional values.
        keywords: values by name.
        skip: how many leading arguments are data rather than parameters.

    Returns:
        Every parameter with its value.

    Raises:
        TypeError: for an unknown parameter, or one that is required and missing; it is named.
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


def _as_declared(parameter: inspect.Parameter, value: object) -> object:
    """Convert whole numbers to ``float`` where that is declared, so that labels and types do not vary."""
    declared = str(parameter.annotation).startswith("float") or parameter.annotation is float
    if declared and isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    return value


def check_parameters(
    what: str, function: Callable[..., object], parameters: Parameters, own: Mapping[str, Rule] | None = None
) -> None:
    """Refuse values outside the range that a parameter of that name has in every estimator.

    Args:
        what: the name of the function in messages.
        function: the function whose parameters they are.
        parameters: every parameter with its value.
        own: rules in place of the common ones.

    Raises:
        ValueError: naming the parameter, its value and what is accepted.
    """
    declared = inspect.signature(function).parameters
    for name, value in parameters.items():
        left_out = value is None and declared[name].default is None
        allowed, accepted = (own or {}).get(name) or RULES[name]
        if not left_out and not allowed(value):
            raise ValueError(f"{what}: {name} must be {accepted}, got {value!r}")


def describe(name: str, function: Callable[..., object], parameters: Parameters) -> str:
    """Format ``name(parameter=value, …)`` with the parameters that have no default or differ from it."""
    signature = inspect.signature(function).parameters
    stated = [f"{key}={written(value)}" for key, value in parameters.items() if value != signature[key].default]
    return f"{name}({', '.join(stated)})" if stated else name
