"""Which weightings of the token scores a run measures beside the plain gradient, and the weights themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from gradstats import estimators
from gradstats.config.experiment import Experiment
from gradstats.config.options import Target
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.by_label import trial_batch
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED, largest_chi_squared
from gradstats.estimators.recipes.weightings import (
    advantages_of,
    is_of_estimator,
    own_advantages,
    own_name,
    ragged,
    weighting_names,
    weightings_by_name,
)
from gradstats.rollouts.table import Rollouts
from gradstats.stats.on_policy import same_weights_recorded
from gradstats.stats.variance.inputs import recorded_differences

if TYPE_CHECKING:
    from gradstats.gradients.session import MeasuringSession


#: Of the first shard of completions that the scored weights drew: the same kernels leave 1e-7, and a forward pass of
#: every other shard, in each part of a run, would show no more.
_CLEARLY_NEGLIGIBLE = NEGLIGIBLE_CHI_SQUARED / 100


@dataclass(frozen=True)
class PossibleWeightings:
    """The names of weightings that the estimators of an experiment may need, each in a fixed order."""

    off_policy: tuple[str, ...] = ()  # those needed where ratios vary
    # those of them that vary along a completion where every ratio is 1 as well: of a mask by entropy, and of a KL term
    # in the loss
    always: tuple[str, ...] = ()
    # advantages of tokens from state values, which are measured where no probes are
    advantages: tuple[str, ...] = ()

    @property
    def of_equal_ratios(self) -> tuple[str, ...]:
        """Those that are measured where every ratio is 1."""
        return (*self.always, *self.advantages)

    @property
    def of_any_ratios(self) -> tuple[str, ...]:
        """Those that are measured where ratios vary."""
        return (*self.off_policy, *self.advantages)


def possible_weightings(experiment: Experiment) -> PossibleWeightings:
    """Return the weightings that the estimators of an experiment may need."""
    section = experiment.variance
    chosen = [estimators.get(label) for label in (*section.estimators, section.reference)]
    recipes = [one for one in chosen if isinstance(one, Recipe) and one.level == "token"]
    available = [one for one in recipes if "ref_logprobs" not in one.needs or experiment.reference_policy]
    advantages: tuple[str, ...] = ()
    if not experiment.measurement.token_probes:
        batch = trial_batch_of(experiment)
        own = (advantage for one in chosen if (advantage := own_advantages(one, batch)))
        advantages = tuple(own_name(advantage) for advantage in dict.fromkeys(own))
    on_policy = _names(one for one in available if _varies_on_policy(one))
    return PossibleWeightings(_names(available), on_policy, advantages)


def _varies_on_policy(recipe: Recipe) -> bool:
    mask = recipe.mask.definition
    return (mask.level == "token" and not mask.of_ratios) or recipe.kl.definition.level == "token"


def _names(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in recipes for name in weighting_names(one)))


def needed_weightings(
    tables: Sequence[Rollouts],
    possible: PossibleWeightings,
    target: Target,
    metadata: Mapping[str, object],
    spreads: Iterable[float],
) -> tuple[str, ...]:
    r"""Return the weightings that a run measures: those that a comparison of all its completions will combine.

    The comparison keeps ratios where it is judged against the importance-weighted target, or where :math:`χ^2` of all
    completions exceeds :data:`gradstats.estimators.ratios.NEGLIGIBLE_CHI_SQUARED`; else it takes every ratio as 1.
    Where all shards record that the scored weights drew them, and the first lies far below that limit, the others are
    not scored.

    Args:
        tables: the shards.
        possible: what the estimators may need.
        target: what the comparison is judged against.
        metadata: the scored policy, as a measurement records it.
        spreads: :func:`spread_of_ratios` of each shard, beginning with the first.
    """
    if possible.off_policy == possible.always or any("sampler_logprobs" not in table.frame for table in tables):
        return possible.of_equal_ratios
    recorded = (recorded_differences(SimpleNamespace(rollouts=table, metadata=metadata)) for table in tables)
    if target == "importance" or (target == "auto" and any(recorded)):
        return possible.of_any_ratios
    drawn_by_it = all(same_weights_recorded(table.metadata.get("policy"), metadata.get("policy")) for table in tables)
    found: list[float] = []
    for spread in spreads:
        if drawn_by_it and not found and spread < _CLEARLY_NEGLIGIBLE * len(tables[0]):
            break
        found.append(spread)
        # The sum is rounded once, so that it only grows, in whichever order the shards are scored.
        if math.fsum(found) > NEGLIGIBLE_CHI_SQUARED * sum(map(len, tables)):
            return possible.of_any_ratios
    return possible.of_equal_ratios


def spread_of_ratios(session: MeasuringSession, rollouts: Rollouts) -> float:
    """Return the greatest :math:`χ^2` of some completions times their number, from a forward pass."""
    return largest_chi_squared(session.scored_batch(rollouts)) * len(rollouts)


def weightings_of(
    session: MeasuringSession,
    rollouts: Rollouts,
    names: Iterable[str],
    values: Mapping[str, list[np.ndarray]] | None = None,
) -> dict[str, list[np.ndarray]] | None:
    """Return the weightings of some completions, by name, one weight per token; None where none is needed.

    ``values`` are the state values of the completions, by field, for those that are advantages.
    """
    names = tuple(names)
    found: dict[str, list[np.ndarray]] = {}
    if others := tuple(name for name in names if not is_of_estimator(name)):
        found |= ragged(rollouts, weightings_by_name(others, session.scored_batch(rollouts)))
    found |= advantages_of(rollouts, filter(is_of_estimator, names), values or {})
    return {name: found[name] for name in names} or None


def trial_batch_of(experiment: Experiment) -> Batch:
    """Return a small batch with the kinds of state values that a run makes; ratios vary where they are meant to."""
    batch, section = trial_batch(), experiment.values
    assert batch.values is not None
    inside_steps = np.arange(batch.mask.shape[1]) > 0  # values of prefixes are known where steps begin
    return batch.with_fields(
        old_logprobs=batch.old_logprobs if experiment.is_off_policy else None,
        ref_logprobs=batch.ref_logprobs if experiment.reference_policy else None,
        values=np.where(inside_steps, np.nan, batch.values) if section.monte_carlo else None,
        fitted_values=batch.values if section.fitted else None,
    )
