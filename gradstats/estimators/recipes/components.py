"""The parts of an estimator other than its advantage: scale, ratio, aggregation, KL, filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gradstats.config.labels import read_label
from gradstats.estimators.estimator import Level
from gradstats.estimators.parameters import bind_parameters, check_parameters, describe, suggest

Kind = Literal["scale", "ratio", "aggregation", "kl", "filter"]


@dataclass(frozen=True)
class PartDefinition:
    """A named part, whatever its parameters.

    Attributes:
        kind: which of the parts it is.
        name: how recipes name it.
        function: its data, by position, then its parameters.
        skip: how many leading arguments are data.
        level: "token" when it makes weights differ between the tokens of a completion.
        needs: Batch fields it cannot do without.
        across_groups: whether it looks beyond a prompt's own group, given its parameters.
        unit: what a scale divides by, and what an aggregation measures gradients in, given its parameters.
    """

    kind: Kind
    name: str
    function: Callable[..., Any]
    skip: int
    level: Level
    needs: tuple[str, ...]
    across_groups: Callable[[Mapping[str, Any]], bool]
    unit: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Part:
    """One part with its parameters; calling it applies it to its data.

    Attributes:
        definition: what the name stands for.
        parameters: every parameter, defaults included.
    """

    definition: PartDefinition
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """The name, without parameters."""
        return self.definition.name

    @property
    def label(self) -> str:
        """The name with the parameters that differ from their defaults."""
        return describe(self.name, self.definition.function, self.parameters)

    @property
    def across_groups(self) -> bool:
        """Whether it looks beyond the prompt's own group."""
        return self.definition.across_groups(self.parameters)

    @property
    def unit(self) -> str:
        """What a scale divides by, and what an aggregation measures gradients in."""
        return self.definition.unit(self.parameters)

    def __call__(self, *data: Any) -> Any:
        """Apply the part to its data."""
        return self.definition.function(*data, **self.parameters)

    def __repr__(self) -> str:
        return self.label


PARTS: dict[str, dict[str, PartDefinition]] = {kind: {} for kind in ("scale", "ratio", "aggregation", "kl", "filter")}


def part(
    kind: Kind,
    name: str,
    *,
    skip: int = 1,
    level: Level = "sequence",
    needs: tuple[str, ...] = (),
    across_groups: Callable[[Mapping[str, Any]], bool] = lambda parameters: False,
    unit: Callable[[Mapping[str, Any]], str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Part]]:
    """Register a part and turn its function into the factory of that name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Part]:
        definition = PartDefinition(
            kind, name, function, skip, level, needs, across_groups, unit or (lambda parameters: name)
        )
        PARTS[kind][name] = definition

        def factory(*arguments: Any, **keywords: Any) -> Part:
            return _make(definition, arguments, keywords)

        factory.__name__ = factory.__qualname__ = name
        factory.__doc__ = function.__doc__
        factory.__module__ = function.__module__
        return factory

    return decorate


def get_part(kind: Kind, name: str | Part, **parameters: Any) -> Part:
    """Find a part by kind and by name or label, as in ``get_part("ratio", "token_clip(eps_high=0.28)")``.

    Raises:
        KeyError: for an unknown name, with the nearest known one.
        TypeError: for unknown parameters, or a part of another kind.
        ValueError: for parameters outside their range.
    """
    if isinstance(name, Part):
        if name.definition.kind != kind:
            raise TypeError(f"{name.label} is a part of kind {name.definition.kind}, given as {kind}")
        return name
    base, told = read_label(name)
    return _make(_find(kind, base), (), {**told, **parameters})


def parameter_names(kind: Kind, name: str) -> list[str]:
    """The parameters that a part of that name takes."""
    definition = _find(kind, name)
    return list(inspect.signature(definition.function).parameters)[definition.skip :]


def _find(kind: Kind, name: str) -> PartDefinition:
    if name not in PARTS[kind]:
        raise KeyError(f"no {kind} is called {name!r}: {suggest(name, list(PARTS[kind]))}")
    return PARTS[kind][name]


def _make(definition: PartDefinition, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Part:
    what = f"{definition.kind} {definition.name}"
    parameters = bind_parameters(what, definition.function, arguments, keywords, skip=definition.skip)
    check_parameters(what, definition.function, parameters)
    return Part(definition, cast("dict[str, Any]", parameters))
