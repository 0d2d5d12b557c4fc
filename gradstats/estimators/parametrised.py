"""The common part of estimators and recipe components: a definition behind a name, and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, runtime_checkable

from gradstats.estimators.parameters import Parameters, describe


@runtime_checkable
class NamedFunction(Protocol):
    """A function that is found by name, and the properties of its use."""

    @property
    def name(self) -> str:
        """The canonical name."""
        ...

    @property
    def function(self) -> Callable[..., object]:
        """The function that the parameters are passed to."""
        ...

    @property
    def across_groups(self) -> Callable[[Parameters], bool]:
        """Whether it is batch-level, that is, uses other groups than the prompt's, given the parameters."""
        ...

    @property
    def unit(self) -> Callable[[Parameters], str]:
        """What gradients are measured in, or divided by, given the parameters."""
        ...


Defined = TypeVar("Defined", bound=NamedFunction, covariant=True)


@dataclass(frozen=True)
class Parametrised(Generic[Defined]):
    """A definition with its parameters, which its label shows.

    Attributes:
        definition: what the name stands for.
        parameters: every parameter, defaults included.
        written: the label it was found by; None for one that was built from its factory.
    """

    definition: Defined
    parameters: Parameters
    written: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The canonical name, without parameters."""
        return self.definition.name

    @property
    def label(self) -> str:
        """The label that it was found by, else :attr:`composition`."""
        return self.composition if self.written is None else self.written

    @property
    def composition(self) -> str:
        """The name with the parameters that are required or differ from their defaults."""
        return describe(self.name, self.definition.function, self.parameters)

    @property
    def across_groups(self) -> bool:
        """Whether it is batch-level: whether a group's weights depend on other groups of the batch."""
        return self.definition.across_groups(self.parameters)

    @property
    def unit(self) -> str:
        """What gradients are measured in, or divided by; variances of different units are not compared."""
        return self.definition.unit(self.parameters)

    def __hash__(self) -> int:
        return hash(self.composition)

    def __repr__(self) -> str:
        return self.label
