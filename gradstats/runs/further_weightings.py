"""The further token weightings that the recipes of a run need where its completions are off-policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradstats import estimators
from gradstats.config.experiment import Experiment
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED, chi_squared
from gradstats.estimators.recipes.weightings import weighting_names, weightings_by_name
from gradstats.gradients import MeasuringSession
from gradstats.rollouts.table import Rollouts


@dataclass(frozen=True)
class ScoredTokens:
    """Rollouts with the log-probabilities of their tokens, from a forward pass.

    Attributes:
        rollouts: the completions.
        logprobs: for each, (T_i,) log-probabilities under the scored policy.
    """

    rollouts: Rollouts
    logprobs: list[np.ndarray]

    @property
    def old_logprobs(self) -> list[np.ndarray] | None:
        """The sampler's log-probabilities, where it recorded them."""
        if "sampler_logprobs" not in self.rollouts.frame:
            return None
        return [values.astype(np.float64) for values in self.rollouts.tokens("sampler_logprobs")]

    def batch(self) -> Batch:
        """Return the batch of everything that is known before the gradients are measured."""
        return Batch.from_measurement(self)


def possible_weightings(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the weightings that the estimators of an experiment may need, in a fixed order."""
    section = experiment.variance
    chosen = [estimators.get(label) for label in (*section.estimators, section.reference)]
    recipes = [one for one in chosen if isinstance(one, Recipe) and one.level == "token"]
    available = [one for one in recipes if "ref_logprobs" not in one.needs]  # a run measures no reference policy
    return tuple(dict.fromkeys(name for one in available for name in weighting_names(one)))


def needed_weightings(session: MeasuringSession, first: Rollouts, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the weightings that a run measures: all where its first shard is off-policy, else none."""
    if not possible or "sampler_logprobs" not in first.frame:
        return ()
    off_policy = chi_squared(ScoredTokens(first, session.logprobs(first)).batch()) > NEGLIGIBLE_CHI_SQUARED
    return possible if off_policy else ()


def weightings_of(
    session: MeasuringSession, rollouts: Rollouts, names: Iterable[str]
) -> dict[str, list[np.ndarray]] | None:
    """Return the weightings of some completions, by name, one weight per token; None where none is needed."""
    names = tuple(names)
    if not names:
        return None
    batch = ScoredTokens(rollouts, session.logprobs(rollouts)).batch()
    widths = [len(mask) for mask in rollouts.masks]
    return {
        name: [row[:width] for row, width in zip(values, widths, strict=True)]
        for name, values in weightings_by_name(names, batch).items()
    }
