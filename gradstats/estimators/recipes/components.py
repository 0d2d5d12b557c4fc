"""The components of a recipe other than its advantage: scale, ratio, aggregation, KL, filter, reward, mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gradstats.config.labels import read_label
from gradstats.estimators.estimator import SEQUENCE_SUM, Level
from gradstats.estimators.parameters import Parameters, Rule, bind_parameters, check_parameters, suggest
from gradstats.estimators.parametrised import Parametrised

Kind = Literal["scale", "ratio", "aggregation", "kl", "filter", "reward", "mask"]

#: The component of each kind that a recipe has unless it names another: it leaves the plain sum as it is.
DEFAULT_COMPONENTS: dict[Kind, str] = {
    "scale": "none",
    "ratio": "none",
    "aggregation": SEQUENCE_SUM,
    "kl": "none",
    "filter": "none",
    "reward": "none",
    "mask": "none",
}


@dataclass(frozen=True)
class ComponentDefinition:
    """A named component, whatever its parameters.

    Attributes:
        kind: which of the components it is.
        name: how recipes name it.
        function: takes its data, by position, then its parameters.
        skip: how many leading arguments are data.
        level: "token" when it makes weights differ between the tokens of a completion.
        needs: Batch fields that it requires.
        across_groups: whether it is batch-level, that is, uses other groups than the prompt's, given its parameters.
        of_ratios: whether it has no effect where every ratio is 1.
        fixed: whether its effect on a completion is the same in every batch, given its parameters.
        unit: what a scale divides by, and what an aggregation measures gradients in, given its parameters.
        rules: what its parameters accept, where that differs from other estimators' parameters of the name.
    """

    kind: Kind
    name: str
    function: Callable[..., object]
    skip: int
    level: Level
    needs: tuple[str, ...]
    across_groups: Callable[[Parameters], bool]
    unit: Callable[[Parameters], str]
    of_ratios: bool = False
    fixed: Callable[[Parameters], bool] = lambda parameters: True
    rules: Mapping[str, Rule] = field(default_factory=dict, compare=False)  # a dict has no hash


class Component(Parametrised[ComponentDefinition]):
    """One component with its parameters; calling it applies it to its data.

    Attributes:
        definition: what the name stands for.
        parameters: every parameter, defaults included.
    """

    def __call__(self, *data: object) -> Any:
        """Apply the component to its data; what it returns depends on its kind."""
        return self.definition.function(*data, **self.parameters)


COMPONENTS: dict[str, dict[str, ComponentDefinition]] = {kind: {} for kind in get_args(Kind)}


def component(
    kind: Kind,
    name: str,
    *,
    skip: int = 1,
    level: Level = "sequence",
    needs: tuple[str, ...] = (),
    across_groups: Callable[[Parameters], bool] = lambda parameters: False,
    unit: Callable[[Parameters], str] | None = None,
    of_ratios: bool = False,
    fixed: Callable[[Parameters], bool] = lambda parameters: True,
    rules: Mapping[str, Rule] | None = None,
) -> Callable[[Callable[..., object]], Callable[..., Component]]:
    """Register a component and turn its function into the factory of that name."""

    def decorate(function: Callable[..., object]) -> Callable[..., Component]:
        definition = ComponentDefinition(
            kind,
            name,
            function,
            skip,
            level,
            needs,
            across_groups,
            unit or (lambda parameters: name),
            of_ratios,
            fixed,
            rules or {},
        )
        COMPONENTS[kind][name] = definition

        def factory(*arguments: object, **keywords: object) -> Component:
            return _make(definition, arguments, keywords)

        factory.__name__ = factory.__qualname__ = name
        factory.__doc__ = function.__doc__
        factory.__module__ = function.__module__
        return factory

    return decorate


def get_component(kind: Kind, name: str | Component, **parameters: object) -> Component:
    """Find a component by kind and by name or label, as in ``get_component("ratio", "token_clip(eps_high=0.28)")``.

    Raises:
        KeyError: for an unknown name, with the nearest known one.
        TypeError: for unknown parameters, or a component of another kind.
        ValueError: for parameters outside their range.
    """
    if isinstance(name, Component):
        if name.definition.kind != kind:
            raise TypeError(f"{name.label} is a component of kind {name.definition.kind}, given as {kind}")
        return name
    base, from_label = read_label(name)
    return _make(_find(kind, base), (), {**from_label, **parameters})


def parameter_names(kind: Kind, name: str) -> dict[str, bool]:
    """Return the names of the parameters that a component takes."""
    definition = _find(kind, name)
    declared = list(inspect.signature(definition.function).parameters.values())[definition.skip :]
    return {parameter.name: parameter.default is parameter.empty for parameter in declared}


def _find(kind: Kind, name: str) -> ComponentDefinition:
    if name not in COMPONENTS[kind]:
        raise KeyError(f"no {kind} is called {name!r}: {suggest(name, list(COMPONENTS[kind]))}")
    return COMPONENTS[kind][name]


def _make(definition: ComponentDefinition, arguments: tuple[object, ...], keywords: Parameters) -> Component:
    what = f"{definition.kind} {definition.name}"
    parameters = bind_parameters(what, definition.function, arguments, keywords, skip=definition.skip)
    check_parameters(what, definition.function, parameters, definition.rules)
    return Component(definition, parameters)
