"""Which label of this package has the weights of a trainer: every estimator and recipe, and what composes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from gradstats.config.options import written
from gradstats.estimators import recipes, registry
from gradstats.estimators.by_label import get
from gradstats.estimators.estimator import Estimator, NamedFunction, Weighting
from gradstats.estimators.recipes.components import COMPONENTS, DEFAULT_COMPONENTS, Component, Kind, get_component
from gradstats.estimators.recipes.recipe import CUSTOM, PREFIX
from gradstats.integrations.certify.batches import Batches

#: Batches that all labels are tried on, evenly spaced.
_N_PROBES = 20
#: How close to 1 a cosine is in float32 where weights may be equal, and how many such labels are tried on all batches.
_ALIKE, _N_VERIFIED = 1e-5, 12
#: Differences of weights that count as equal: trainers add 1e-8 to some denominators.
_EQUAL = 1e-6


def label_weights(batches: Batches, estimator: Weighting, numbers: Int[np.ndarray, "k"]) -> Float[np.ndarray, "k b t"]:
    """Return the weights that an estimator gives the tokens of some batches, whose gradient is the mean of groups."""
    parts = np.split(numbers, len(numbers)) if estimator.across_groups else [numbers]
    found = []
    for part in parts:
        batch = batches.batch(part)
        weights = estimator.weights(batch)
        found.append(weights * batch.mask if weights.ndim == 2 else weights[:, None] * batch.mask)
    together = np.concatenate(found) / batches.policy.n_prompts
    return together.reshape(len(numbers), batches.rows.shape[1], -1)


def known(name: str, parameters: Mapping[str, object]) -> str:
    """Return the label of a trainer's setting, "" where no recipe stands for it."""
    values = ", ".join(f"{parameter}={value}" for parameter, value in parameters.items())
    label = f"{name}({values})" if values else name
    try:
        get(label)
    except (KeyError, ValueError):
        return ""
    return label


@dataclass(frozen=True)
class Catalogue:
    """The weights of all labels on the batches of a sampler.

    Attributes:
        batches: the batches.
        parameters: values that components are tried with beside their defaults, by name.
    """

    batches: Batches
    parameters: Mapping[str, tuple[object, ...]]
    _known: dict[str, np.ndarray] = field(default_factory=dict)  # label → weights in all batches

    @cached_property
    def reference(self) -> Float[np.ndarray, "m b t"]:
        """The weights of RLOO in all batches, with sequence ratios where the sampler is older: it is unbiased."""
        return self._everywhere("recipe:rloo_is" if self.batches.policy.off_policy else "rloo")

    def _everywhere(self, label: str) -> Float[np.ndarray, "m b t"]:
        if label not in self._known:
            self._known[label] = label_weights(self.batches, get(label), np.arange(len(self.batches.rows)))
        return self._known[label]

    def nearest(self, weights: Float[np.ndarray, "m b t"], expected: str = "") -> tuple[str, float, float]:
        """Return the label whose weights are equal, else nearest: the label, the factor, and the cosine of weights.

        Args:
            weights: those of a trainer.
            expected: the label that is tried first, if any.
        """
        if expected and (factor := self._factor(weights, expected)) is not None:
            return expected, factor, 1.0
        labels, units, sizes = self._tried
        wanted = weights[self._probes].reshape(-1)
        size = float(np.linalg.norm(wanted))
        if size == 0:
            return "", np.nan, np.nan
        cosines = units @ (wanted / size).astype(np.float32)
        alike = [int(at) for at in np.flatnonzero(cosines > 1 - _ALIKE)]
        alike.sort(key=lambda at: (abs(size / sizes[at] - 1) > _ALIKE, at))  # the simplest come first
        for at in [*alike[:_N_VERIFIED], int(cosines.argmax())]:
            if (factor := self._factor(weights, labels[at])) is not None:
                return labels[at], factor, 1.0
        compared = [(*self._projected(weights, label), label) for label in (labels[at], expected) if label]
        likeness, factor, label = max(compared, key=lambda one: one[0])
        return label, factor, min(likeness, 1 - _EQUAL)

    def _projected(self, weights: Float[np.ndarray, "m b t"], label: str) -> tuple[float, float]:
        """Return the cosine of weights with those of a label, and their coefficient on them; 0 where one has none."""
        other = self._everywhere(label)
        product, size, length = float((weights * other).sum()), float((other * other).sum()), np.linalg.norm(weights)
        return (float(product / size**0.5 / length), product / size) if size and length else (0.0, 0.0)

    def _factor(self, weights: Float[np.ndarray, "m b t"], label: str) -> float | None:
        """Return c where the weights are c times those of a label, 1 where it is 1 to rounding; else None."""
        _, factor = self._projected(weights, label)
        factor = 1.0 if abs(factor - 1.0) <= _EQUAL else factor
        left = np.abs(weights - factor * self._everywhere(label)).max()
        return factor if weights.any() and left <= _EQUAL * np.abs(weights).max() else None

    @property
    def _probes(self) -> Int[np.ndarray, "p"]:
        return np.unique(np.linspace(0, len(self.batches.rows) - 1, _N_PROBES).astype(int))

    @cached_property
    def _tried(self) -> tuple[list[str], Float[np.ndarray, "labels n"], Float[np.ndarray, "labels"]]:
        """Labels, the simplest first, their weights on the probes scaled to length 1, and those lengths."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {label: values for label, values in self._weights() if np.isfinite(values).all() and values.any()}
        labels, stacked = list(found), np.stack(list(found.values()))
        sizes = np.linalg.norm(stacked, axis=1)
        return labels, (stacked / sizes[:, None]).astype(np.float32), sizes

    def _weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield every label with its weights on the probes."""
        for label in [*registry.names(), *(PREFIX + name for name in recipes.names())]:
            try:
                yield label, label_weights(self.batches, get(label), self._probes).reshape(-1)
            except (TypeError, ValueError):  # a parameter without a default, or a field that is not enumerated
                continue
        yield from sorted(self._compositions(), key=lambda one: (one[0].count("="), "clip_cov" in one[0], len(one[0])))

    def _compositions(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield recipes of an advantage, a scale, an aggregation, and at most one of ratio, correction and mask.

        Each part is computed once, and multiplied as a recipe does.
        """
        whole = self.batches.batch(self._probes)
        alone = [self.batches.batch(np.array([number])) for number in self._probes]

        def over(compute: Callable[..., np.ndarray], across_groups: bool, *data: np.ndarray) -> np.ndarray:
            """Return what a part gives for data and batch, on each probe by itself where it is batch-level."""
            if not across_groups:
                return compute(*data, whole)
            split = [np.split(one, len(alone)) for one in data]
            return np.concatenate([compute(*(one[at] for one in split), batch) for at, batch in enumerate(alone)])

        rho = np.zeros(whole.mask.shape)
        if whole.logprobs is not None and whole.old_logprobs is not None:
            rho = np.where(whole.mask, whole.logprobs - whole.old_logprobs, 0.0)
        parts: dict[Kind, dict[str, Component]] = {
            kind: {one.label: one for one in self._components(kind)}
            for kind in ("scale", "ratio", "correction", "aggregation", "mask")
        }
        factors = {label: over(part, part.across_groups) for label, part in parts["aggregation"].items()}
        factors = {label: factor[:, None] / self.batches.policy.n_prompts for label, factor in factors.items()}
        others = {("correction", label): over(part, False, rho) for label, part in parts["correction"].items()}
        others |= {("mask", label): over(part, part.across_groups) for label, part in parts["mask"].items()}
        for advantage in self._advantages():
            plain = over(advantage.advantages, advantage.across_groups)
            for scale, part in parts["scale"].items():
                scaled = over(part, part.across_groups, plain)
                scaled = np.where(whole.mask, scaled if scaled.ndim == 2 else scaled[:, None], 0.0)
                weighted = {
                    ("ratio", label): over(by, by.across_groups, scaled, rho) for label, by in parts["ratio"].items()
                }
                weighted |= {key: scaled * other for key, other in others.items()}
                for (kind, label), values in weighted.items():
                    for aggregation, factor in factors.items():
                        stated = {"scale": scale, kind: label, "aggregation": aggregation}
                        yield _label_of(advantage.composition, stated), (values * factor).reshape(-1)

    def _advantages(self) -> Iterator[Estimator]:
        """Yield the registered advantages with their parameters that can be computed here."""
        batch = self.batches.batch(self._probes[:1])
        for name in registry.names():
            definition = registry.get_definition(name)
            for given in self._given(definition, 1):
                try:
                    made = registry.get_estimator(name, **given)
                    made.advantages(batch)
                except (TypeError, ValueError):
                    continue
                yield made

    def _components(self, kind: Kind) -> Iterator[Component]:
        """Yield the components of a kind with their parameters; those of ratios only where ratios differ from 1."""
        batch = self.batches.batch(self._probes[:1])
        for name, definition in COMPONENTS[kind].items():
            if name != "none" and (kind == "ratio" or definition.of_ratios) and not self.batches.policy.off_policy:
                continue
            if name == "local_token_mean":  # all of a batch are on one device: the token mean of the batch
                continue
            for given in self._given(definition, definition.skip):
                try:
                    made = get_component(kind, name, **given)
                    batch.require(definition.needs, name)
                    made(*[np.zeros(batch.mask.shape)] * (definition.skip - 1), batch)
                except (TypeError, ValueError):  # values that do not go together
                    continue
                yield made

    def _given(self, definition: NamedFunction, skip: int) -> Iterator[dict[str, object]]:
        """Yield values of a function's parameters: the default of each, and those that are to be tried."""
        declared = list(signature(definition.function).parameters.values())[skip:]
        tried = {
            one.name: (*([] if one.default is Parameter.empty else [one.default]), *self.parameters.get(one.name, ()))
            for one in declared
        }
        for values in product(*tried.values()):
            yield dict(zip(tried, values, strict=True))


def _label_of(advantage: str, components: Mapping[str, str]) -> str:
    """Return the label of a recipe of these components, without those that do nothing."""
    stated = {kind: label for kind, label in components.items() if (kind, label) not in DEFAULT_COMPONENTS.items()}
    texts = [f"{kind}={written(label)}" for kind, label in {"advantage": advantage, **stated}.items()]
    return f"{PREFIX}{CUSTOM}({', '.join(texts)})" if stated else advantage
