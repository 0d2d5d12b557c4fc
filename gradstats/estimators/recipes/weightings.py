r"""Recipes whose token weights vary along a completion, as combinations of weightings that no advantage enters.

A clip weights a token by a function of its ratio and of the sign of the advantage alone (a correction by one for both
signs). With an advantage :math:`A_i`
for each completion, the gradient of completion i is therefore

.. math:: \sum_t w_{i,t} s_{i,t} = c_i^+ \sum_t f^+(ρ_{i,t}) s_{i,t} + c_i^- \sum_t f^-(ρ_{i,t}) s_{i,t}
    + c_i \sum_t k_{i,t} s_{i,t},

with :math:`c_i^± = (±A_i)_+·(±1)` times the aggregation's factor, and k the KL term of the loss. The sums are measured
once (``gradstats.measure(token_weights=…)``), whatever the rewards, the group size and the estimator; every recipe of
the same clip shares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradstats.estimators.batch import Batch, MeasuredCompletions
from gradstats.estimators.by_label import get
from gradstats.estimators.estimator import Level, Weighting, Wrapped
from gradstats.estimators.recipes.components import Kind, kind_of
from gradstats.estimators.recipes.recipe import BESIDE, SIGNS, Recipe
from gradstats.system.late import Float, np


def _measurable(recipe: Recipe) -> bool:
    """Whether the weightings are the same in every batch: neither advantages by token nor a mask by quantiles, and no
    term beside the advantage.
    """
    fixed = recipe.mask.definition.fixed(recipe.mask.parameters) and recipe.ratio.definition.proportional
    return recipe.advantage.level != "token" and fixed


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


def weightings_by_name(names: Iterable[str], batch: Batch) -> dict[str, Float[np.ndarray, "n t"]]:
    """Return the weightings of some names of :func:`weighting_names`, whichever recipes combine them."""
    found: dict[str, np.ndarray] = {}
    for name in names:
        of_ratio = name.endswith(SIGNS)
        pattern, *others = (name[: -len(SIGNS[0])] if of_ratio else name).split(BESIDE)
        parts: dict[Kind, str] = {kind_of(label): label for label in others}
        parts["ratio" if of_ratio else "kl"] = pattern
        recipe = Recipe("rloo", **parts)  # pyright: ignore[reportArgumentType]  # none of them is the name
        found[name] = weightings(recipe, batch)[name]
    return found


def token_weightings(
    estimators: Sequence[str | Weighting], measured: MeasuredCompletions
) -> dict[str, list[np.ndarray]]:
    """Return the further weightings that recipes need, for ``gradstats.measure(token_weights=…)``.

    Args:
        estimators: labels or recipes; estimators that need none are passed over.
        measured: a measurement of the same rollouts, whose log-probabilities give the ratios.

    Returns:
        Name → for each completion one weight per token.

    Raises:
        ValueError: when the measurement lacks log-probabilities that a recipe needs.
    """
    batch = Batch.from_measurement(measured)
    widths = [len(mask) for mask in measured.rollouts.masks]
    found: dict[str, list[np.ndarray]] = {}
    for recipe in (get(estimator) for estimator in estimators):
        if isinstance(recipe, Recipe) and recipe.level == "token":
            for name, values in weightings(recipe, batch).items():
                found[name] = [row[:width] for row, width in zip(values, widths, strict=True)]
    return found


@dataclass(frozen=True)
class ByWeightings(Wrapped[Recipe]):
    """A recipe that combines measured weightings, where ``weights`` are one coefficient for each of them."""

    # The weightings of the comparison, in order.
    names: tuple[str, ...]

    @property
    def level(self) -> Level:
        """``"token"``: weights are (N, weightings)."""
        return "token"

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
            coefficients[:, self.names.index(name)] = factor
        return coefficients
