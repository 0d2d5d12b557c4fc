"""What an estimator is: a definition and its parameters, checked and bound, which weight the scores of completions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Generic, Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from gradstats.config.options import written
from gradstats.estimators.batch import Batch

#: Values by name; a user's own estimator may take values of any type.
Parameters = Mapping[str, Any]
#: Whether a value is accepted, and what is accepted, in words.
Rule = tuple[Callable[[object], bool], str]


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))


def one_of(*choices: str) -> Rule:
    """Return the rule of a parameter that is one of some words."""
    return lambda value: value in choices, " or ".join(repr(choice) for choice in choices)


def _whole(least: int) -> Rule:
    accepted = f"a whole number of at least {least}"
    return lambda value: isinstance(value, int | np.integer) and bool(value >= least), accepted


SWITCH: Rule = (lambda value: isinstance(value, bool | np.bool_), "True or False")
FINITE: Rule = (_finite, "a finite number")
POSITIVE: Rule = (lambda value: _finite(value) and value > 0, "a finite number above 0")
NOT_NEGATIVE: Rule = (lambda value: _finite(value) and value >= 0, "a finite number of at least 0")
SHARE: Rule = (lambda value: _finite(value) and 0 <= value <= 1, "a number between 0 and 1")

AT_LEAST_1: Rule = (lambda value: _finite(value) and value >= 1, "a finite number of at least 1")
AT_MOST_1: Rule = (lambda value: _finite(value) and 0 < value <= 1, "a number above 0, at most 1")

RULES: dict[str, Rule] = {
    "cap": AT_LEAST_1,
    "loo": SWITCH,
    "scope": one_of("group", "batch"),
    "off_policy": SWITCH,
    "truncate": POSITIVE,
    "singleton": one_of("zero", "reward", "nan"),
    "b": (lambda value: _finite(value) or value == "optimal", "a number or 'optimal'"),
    "alpha": (lambda value: _finite(value) or value == "within_prompt", "a finite number or 'within_prompt'"),
    "delta": FINITE,
    "tau": POSITIVE,
    "tau_pos": POSITIVE,
    "tau_neg": POSITIVE,
    "k_pos": NOT_NEGATIVE,
    "k_neg": NOT_NEGATIVE,
    "lambda_pos": NOT_NEGATIVE,
    "lambda_neg": NOT_NEGATIVE,
    "width": POSITIVE,
    "q": SHARE,
    "decay": SHARE,
    "start": FINITE,
    "count": POSITIVE,
    "process": NOT_NEGATIVE,
    "noise": POSITIVE,
    "variance": NOT_NEGATIVE,
    "columns": (
        lambda value: isinstance(value, str) and bool(value),
        "columns with weights, as in 'accuracy=1, format=2'",
    ),
    "signs": SWITCH,
    "of": one_of("groups", "rewards"),
    "level": one_of("token", "sequence"),
    "mismatch": one_of("whole", "truncate", "mask"),
    "averaged": SWITCH,
    "ddof": _whole(0),
    "eps": NOT_NEGATIVE,
    "normalize": SWITCH,
    "shrink_factor": SWITCH,
    "gamma": SHARE,
    "lam": SHARE,
    "whiten": SWITCH,
    "k": _whole(1),
    "keep": _whole(2),
    "least": NOT_NEGATIVE,
    "energy": one_of("logit", "exact"),
    "zero_tail": SWITCH,
    "eps_low": NOT_NEGATIVE,
    "eps_high": NOT_NEGATIVE,
    "dual_clip": POSITIVE,
    "max_drift": NOT_NEGATIVE,
    "convention": one_of("verl", "trl"),
    "max_tokens": POSITIVE,
    "completions": _whole(1),
    "beta": NOT_NEGATIVE,
    "kind": one_of("k1", "k2", "k3"),
    "max": POSITIVE,
    "cache": POSITIVE,
    "share": SHARE,
    "threshold": NOT_NEGATIVE,
    "rescale": SWITCH,
    "by_ratio": SWITCH,
    "dynamic_sampling": SWITCH,
    "low": POSITIVE,
    "high": POSITIVE,
    "over": one_of("mean", "sum", "max"),
    "baseline": (lambda value: isinstance(value, str) and bool(value), "the label of an estimator"),
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one stands for; None where none is near."""
    near = get_close_matches(name, list(known), cutoff=0.7)  # at 0.5, "dapo" passes for "opo"
    # Letters that changed places, as in "gpro", are likelier than others that are equally similar.
    return min(near, key=lambda one: sorted(one) != sorted(name), default=None)


def suggest(name: str, known: list[str]) -> str:
    """Suggest the nearest known name, or list all of them where none is near."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(known))}"


def bind_parameters(
    what: str, function: Callable[..., object], arguments: tuple[object, ...], keywords: Parameters, skip: int
) -> dict[str, object]:
    """Bind values to the parameters of ``function`` after the first ``skip``, and fill in the defaults."""
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
    """Refuse values outside the range that a parameter of that name has in every estimator, or in ``own``."""
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


Level = Literal["sequence", "token"]

# The unit of a plain baseline: rewards times the scores summed over the tokens of a completion.
SEQUENCE_SUM = "sequence_sum"


@dataclass(frozen=True, kw_only=True)
class NamedFunction:
    """A function that is found by name, and the properties of its use, given its parameters."""

    name: str
    function: Callable[..., Any]
    level: Level = "sequence"
    #: Whether it is batch-level, that is, uses other groups than the prompt's.
    across_groups: Callable[[Parameters], bool] = lambda parameters: False
    #: What gradients are measured in, or divided by.
    unit: Callable[[Parameters], str] = lambda parameters: SEQUENCE_SUM


Defined = TypeVar("Defined", bound=NamedFunction, covariant=True)
Made = TypeVar("Made")


def as_factory(
    definition: Defined, make: Callable[[Defined, tuple[object, ...], Parameters], Made]
) -> Callable[..., Made]:
    """Return a function of a definition's parameters, with the name and documentation of what it defines."""

    def factory(*arguments: object, **keywords: object) -> Made:
        return make(definition, arguments, keywords)

    factory.__name__ = factory.__qualname__ = definition.name
    factory.__doc__ = definition.function.__doc__
    factory.__module__ = definition.function.__module__
    return factory


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


@dataclass(frozen=True, kw_only=True)
class Definition(NamedFunction):
    """A named estimator: a function from a ``Batch`` to advantages; the defaults are those of the user's own.

    Its unit is ``"sequence_sum"`` and what the advantages are divided by, as in ``"sequence_sum / group_std"``.
    """

    # What is subtracted, what the difference is divided by, and what E[ĝ] is, in words, for the table.
    baseline: str = "user's own"
    scale: str = "–"
    bias: str = "not stated"
    source: str = "user's own"
    # The fields of the Batch that are required, given the parameters.
    needs: Callable[[Parameters], tuple[str, ...]] = lambda parameters: ()
    # c with E[ĝ] = c·∇J, given the group size and the parameters; None where unknown.
    expected_scale: Callable[[int, Parameters], float | None] = lambda group_size, parameters: None
    # Whether values are checked against RULES.
    checked: bool = False
    # What figures and tables of a paper call it; empty: its label.
    display: str = ""


class Estimator(Parametrised[Definition]):
    r"""One estimator with its parameters: rewards in, weights of the scores out.

    On group m of :math:`N_m` completions its gradient is :math:`g_m = \sum_{i \in m} w_i S_i` with
    ``w = weights(batch)`` (:math:`\sum_{i,t} w_{i,t} s_{i,t}` at token level): the ``sequence_sum`` aggregation,
    :math:`\frac1N\sum_i\sum_t`. The gradient of a batch is the mean over its groups.

    Attributes:
        definition: what the name stands for.
        parameters: every parameter, defaults included.
        written: the label it was found by; None for one that was built from its factory.
    """

    @property
    def level(self) -> Level:
        """``"sequence"``: advantages are (N,), constant along a completion. ``"token"``: (N, T)."""
        return self.definition.level

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that are required."""
        return self.definition.needs(self.parameters)

    def expected_scale(self, group_size: int) -> float | None:
        """Return the factor c in E[ĝ] = c·∇J for on-policy samples in groups of this size, where it is known exactly.

        Args:
            group_size: completions per group.

        Returns:
            1.0 for an unbiased estimator, (N−1)/N for the own-sample mean, None where c is unknown.
        """
        return self.definition.expected_scale(group_size, self.parameters)

    def advantages(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the advantage of each completion or of each token.

        Args:
            batch: the completions.

        Returns:
            (N,) at sequence level, 0 without a counted token; (N, T) at token level, 0 where masked out.

        Raises:
            ValueError: when the batch lacks a field, or a user's function returns another shape.
        """
        batch.require(self.needs, self)
        advantages = np.asarray(self.definition.function(batch, **self.parameters), dtype=np.float64)
        expected = batch.rewards.shape if self.level == "sequence" else batch.mask.shape
        if advantages.shape != expected:
            raise ValueError(
                f"{self.label} returned advantages of shape {advantages.shape}, but a {self.level}-level "
                f"estimator returns {expected} here: register it with the other level, or correct it"
            )
        if self.level == "token":
            return np.where(batch.mask, advantages, 0.0)
        return advantages if batch.lengths.min() > 0 else np.where(batch.lengths > 0, advantages, 0.0)

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the advantages divided by the number of completions of the group, in the same shape."""
        advantages = self.advantages(batch)
        sizes = batch.group_sizes[batch.group_index]
        return advantages / (sizes if advantages.ndim == 1 else sizes[:, None])


@runtime_checkable
class Weighting(Protocol):
    """Anything that weights scores: an :class:`Estimator`, or a recipe."""

    @property
    def name(self) -> str:
        """The name, without parameters."""
        ...

    @property
    def label(self) -> str:
        """The name with its parameters."""
        ...

    @property
    def level(self) -> Level:
        """``"token"`` where weights may differ between the tokens of a completion, else ``"sequence"``."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that are required."""
        ...

    @property
    def across_groups(self) -> bool:
        """Whether a group's weights depend on other groups of the batch."""
        ...

    def expected_scale(self, group_size: int) -> float | None:
        """Return the factor c in E[ĝ] = c·∇J, where it is known."""
        ...

    def weights(self, batch: Batch) -> np.ndarray:
        """Return the weights of the scores in the gradient of each group."""
        ...


def composition_of(estimator: Weighting) -> str:
    """Return what an estimator is composed of; its label where it does not state that."""
    return getattr(estimator, "composition", estimator.label)


def unit_of(estimator: Weighting) -> str:
    """Return the unit of an estimator's gradient; an object that states no ``unit`` is taken as a plain sum."""
    return getattr(estimator, "unit", SEQUENCE_SUM)


W = TypeVar("W", bound=Weighting, covariant=True)


@dataclass(frozen=True)
class Wrapped(Generic[W]):
    """An estimator used in another way: whatever a subclass does not change is the estimator's."""

    estimator: W

    @property
    def name(self) -> str:
        """The estimator's name."""
        return self.estimator.name

    @property
    def label(self) -> str:
        """The estimator's label."""
        return self.estimator.label

    @property
    def composition(self) -> str:
        """What the estimator is composed of."""
        return composition_of(self.estimator)

    @property
    def level(self) -> Level:
        """The estimator's level."""
        return self.estimator.level

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that the estimator requires."""
        return self.estimator.needs

    @property
    def across_groups(self) -> bool:
        """Whether the estimator is batch-level."""
        return self.estimator.across_groups

    @property
    def unit(self) -> str:
        """The estimator's unit."""
        return unit_of(self.estimator)

    def expected_scale(self, group_size: int) -> float | None:
        """Return the estimator's factor c in E[ĝ] = c·∇J."""
        return self.estimator.expected_scale(group_size)

    def weights(self, batch: Batch) -> np.ndarray:
        """Return the estimator's weights."""
        return self.estimator.weights(batch)
