r"""Estimators whose weights vary along a completion, as combinations of measured weightings of its tokens.

A clip weights a token by a function of its ratio and of the sign of the advantage alone (a correction by one for both
signs). With an advantage :math:`A_i`
for each completion, the gradient of completion i is therefore

.. math:: \sum_t w_{i,t} s_{i,t} = c_i^+ \sum_t f^+(ρ_{i,t}) s_{i,t} + c_i^- \sum_t f^-(ρ_{i,t}) s_{i,t}
    + c_i \sum_t k_{i,t} s_{i,t},

with :math:`c_i^± = (±A_i)_+·(±1)` times the aggregation's factor, and k the KL term of the loss. The sums are measured
once (``gradstats.measure(token_weights=…)``), whatever the rewards, the group size and the estimator; every recipe of
the same clip shares them.

Advantages from state values, those of GAE or VinePPO, depend on nothing but the completion itself: there
:math:`\sum_t A_{i,t} s_{i,t}` is measured as one weighting under the advantage's name. It holds for these rewards and
values, and for ratios of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from gradstats.config.options import MEASURE_PROBES, read_label
from gradstats.estimators.batch import Batch, CompletionTable, MeasuredCompletions
from gradstats.estimators.by_label import get
from gradstats.estimators.estimator import Estimator, Level, Weighting, Wrapped
from gradstats.estimators.recipes.components import COMPONENTS, Kind, kind_of
from gradstats.estimators.recipes.recipe import BESIDE, SIGNS, Recipe


def _measurable(recipe: Recipe) -> bool:
    """Whether the weightings are the same in every batch: neither advantages by token nor a mask by quantiles, and no
    term beside the advantage.
    """
    fixed = recipe.mask.definition.fixed(recipe.mask.parameters) and recipe.ratio.definition.proportional
    return recipe.advantage.level != "token" and fixed


#: Prefix of a batch's column that holds the token weights of a measured weighting, (N, T).
MEASURED_WEIGHTS = "measured weights: "
# Relative difference of weights that counts as rounding: measured and compared in other batches.
_ROUNDING = 1e-9


def advantage_of_values(estimator: Weighting) -> Estimator | None:
    """Return the advantage of each token of an estimator where it depends on the rewards and the state values of its
    own completion alone, as that of ``gae``, ``vine`` and ``recipe:ppo``; else None.
    """
    advantage = estimator.advantage if isinstance(estimator, Recipe) else estimator
    if not isinstance(advantage, Estimator) or advantage.level != "token" or advantage.across_groups:
        return None
    return advantage if advantage.definition.checked and set(advantage.needs) == {"values"} else None


def own_advantages(estimator: Weighting, batch: Batch) -> Estimator | None:
    """Return such an advantage where the weights on a batch are a multiple of it for each completion; else None.

    Those of ``recipe:ppo`` are where every ratio is 1, and no KL term or other reward enters.
    """
    advantage = advantage_of_values(estimator)
    if advantage is None or not all(map(batch.has, estimator.needs)):
        return None
    try:
        own = np.where(batch.mask, advantage.weights(batch), 0.0)
        return None if _own_factors(estimator, batch, own) is None else advantage
    except ValueError:  # state values of another kind
        return None


def _own_factors(estimator: Weighting, batch: Batch, own: Float[np.ndarray, "n t"]) -> Float[np.ndarray, "n"] | None:
    r"""Return :math:`c_i` with :math:`w_{i,t} = c_i A_{i,t}` at every token; None where there is none."""
    wanted = estimator.weights(batch)
    wanted = np.where(batch.mask, wanted if wanted.ndim == 2 else wanted[:, None], 0.0)
    squares = np.einsum("nt,nt->n", own, own)
    factors = np.einsum("nt,nt->n", wanted, own) / np.where(squares > 0.0, squares, 1.0)
    rest = np.abs(wanted - factors[:, None] * own).max(axis=1)
    return None if (rest > _ROUNDING * np.abs(wanted).max(axis=1)).any() else factors


def own_name(advantage: Estimator) -> str:
    """Return the name under which such an advantage is measured: its label, with parameters in full."""
    if get(advantage.composition) == advantage:
        return advantage.composition
    return f"{advantage.name}({', '.join(f'{name}={value!r}' for name, value in advantage.parameters.items())})"


def weightings(recipe: Recipe, batch: Batch) -> dict[str, Float[np.ndarray, "n t"]]:
    """Return the weightings that a recipe combines, by name; none for one with an advantage for each token or a
    mask that depends on the batch.
    """
    if not _measurable(recipe):
        return {}
    patterns = recipe.ratio_patterns(batch)
    if recipe.kl.definition.level == "token":
        patterns[recipe.masked_name(recipe.kl.label)] = np.where(recipe.mask(batch), recipe.kl(batch)[1], 0.0)
    return {name: np.where(batch.mask, values, 0.0) for name, values in patterns.items()}


def weighting_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of :func:`weightings`."""
    if not _measurable(recipe):
        return ()
    of_kl = (recipe.masked_name(recipe.kl.label),) if recipe.kl.definition.level == "token" else ()
    return (*recipe.pattern_names, *of_kl)


def is_of_estimator(name: str) -> bool:
    """Return whether a weighting holds the weights of the estimator of that name, and not a ratio's or a KL term's."""
    if name.endswith(SIGNS) or BESIDE in name:
        return False
    return read_label(name)[0] not in COMPONENTS["kl"]


def weightings_by_name(names: Iterable[str], batch: Batch) -> dict[str, Float[np.ndarray, "n t"]]:
    """Return the weightings of some names of :func:`weighting_names`, whichever recipes combine them."""
    found: dict[str, np.ndarray] = {}
    for name in names:
        if is_of_estimator(name):
            found[name] = np.where(batch.mask, get(name).weights(batch), 0.0)
            continue
        of_ratio = name.endswith(SIGNS)
        pattern, *others = (name[: -len(SIGNS[0])] if of_ratio else name).split(BESIDE)
        parts: dict[Kind, str] = {kind_of(label): label for label in others}
        parts["ratio" if of_ratio else "kl"] = pattern
        recipe = Recipe("rloo", **parts)  # pyright: ignore[reportArgumentType]  # none of them is the name
        found[name] = weightings(recipe, batch)[name]
    return found


@dataclass(frozen=True)
class Unmeasured:
    """Completions with nothing but the values of their states, as advantages depend on them."""

    rollouts: CompletionTable
    values: Sequence[Float[np.ndarray, "_"]] | None = None  # means of further completions, or given
    fitted_values: Sequence[Float[np.ndarray, "_"]] | None = None  # of a fitted head


def ragged(rollouts: CompletionTable, padded: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Return weightings by name without their padding: for each completion one weight per token."""
    widths = [len(mask) for mask in rollouts.masks]
    return {name: [row[:width] for row, width in zip(rows, widths, strict=True)] for name, rows in padded.items()}


def advantages_of(
    rollouts: CompletionTable, names: Iterable[str], values: Mapping[str, list[np.ndarray]]
) -> dict[str, list[np.ndarray]]:
    """Return advantages from state values, by name, one weight per token; no policy takes part."""
    if not (names := tuple(names)):
        return {}
    batch = Batch.from_measurement(Unmeasured(rollouts, **values))
    return ragged(rollouts, weightings_by_name(names, batch))


def token_weightings(
    estimators: Sequence[str | Weighting],
    measured: MeasuredCompletions | CompletionTable,
    values: Sequence[Float[np.ndarray, "_"]] | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return the further weightings that estimators need, for ``gradstats.measure(token_weights=…)``.

    Args:
        estimators: labels, estimators or recipes; those that need none are passed over.
        measured: a measurement of the same rollouts, whose log-probabilities give the ratios; advantages from state
            values need no more than the rollouts.
        values: for each completion the value of the state before each of its tokens, for ``gae``, ``vine`` and
            ``recipe:ppo``; those of the measurement by default.

    Returns:
        Name → for each completion one weight per token.

    Raises:
        ValueError: when the measurement lacks log-probabilities or state values that an estimator needs.
    """
    known = measured if isinstance(measured, MeasuredCompletions) else Unmeasured(measured)
    batch = Batch.from_measurement(known, **({} if values is None else {"values": values}))
    found: dict[str, list[np.ndarray]] = {}
    for one in (get(estimator) for estimator in estimators):
        needed: dict[str, np.ndarray] = {}
        if advantage := advantage_of_values(one):
            batch.require(one.needs, one.label)
            needed = weightings_by_name([own_name(advantage)], batch)
        elif isinstance(one, Recipe) and one.level == "token":
            if known is not measured:
                raise ValueError(
                    f"{one.label} weights tokens by their log-probabilities: pass a measurement of the rollouts, which "
                    "has those of the scored policy"
                )
            batch.require(one.needs, one.label)
            needed = weightings(one, batch)
        found |= ragged(known.rollouts, needed)
    return found


Combining = TypeVar("Combining", bound=Weighting, covariant=True)


@dataclass(frozen=True)
class Combination(Wrapped[Combining]):
    """An estimator that combines measured weightings, where ``weights`` are one coefficient for each of them."""

    # The weightings of the comparison, in order.
    names: tuple[str, ...]

    @property
    def level(self) -> Level:
        """``"token"``: weights are (N, weightings)."""
        return "token"


@dataclass(frozen=True)
class ByOwnWeights(Combination[Weighting]):
    """An estimator whose advantage of each token was measured as a weighting: it multiplies that of each completion."""

    own: str  # the name of that weighting

    def weights(self, batch: Batch) -> Float[np.ndarray, "n weightings"]:
        r"""Return :math:`c_i = \langle w_i, m_i\rangle/\lVert m_i\rVert^2` for weights w and measured ones m.

        Raises:
            ValueError: when w is no multiple of m: with other rewards or state values, or ratios that are not 1.
        """
        factors = _own_factors(self.estimator, batch, batch.columns[MEASURED_WEIGHTS + self.own])
        if factors is None:
            raise ValueError(
                f"the weights of {self.label} are not multiples of the advantages that were measured as {self.own}: "
                "rewards or state values have changed since (measure again, in another run directory), or ratios, a KL "
                f"term or a reward by length enter ({MEASURE_PROBES})"
            )
        coefficients = np.zeros((len(factors), len(self.names)))
        coefficients[:, self.names.index(self.own)] = factors
        return coefficients


@dataclass(frozen=True)
class ByWeightings(Combination[Recipe]):
    """A recipe that combines weightings by ratios and KL terms."""

    def weights(self, batch: Batch) -> Float[np.ndarray, "n weightings"]:
        """Return the coefficient of each weighting in the gradient of each completion."""
        recipe = self.estimator
        factor = recipe.factor(batch)
        advantages = recipe.advantages(batch)
        positive, *others = recipe.pattern_names
        negative = others[0] if others else positive
        coefficients = np.zeros((len(advantages), len(self.names)))
        coefficients[:, self.names.index(positive)] = np.maximum(advantages, 0.0) * factor
        coefficients[:, self.names.index(negative)] += np.minimum(advantages, 0.0) * factor
        if recipe.kl.definition.level == "token":
            name = recipe.masked_name(recipe.kl.label)
            coefficients[:, self.names.index(name)] = recipe.kl_factor(batch)
        return coefficients
