"""What the estimators of an experiment need of its run: inputs, and further weightings of the token scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gradstats.config.experiment import Experiment
from gradstats.config.options import estimate_section
from gradstats.config.validation import naming
from gradstats.estimators.batch import COLUMN, Batch, how_to_get
from gradstats.estimators.by_label import get, trial_batch
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.ratios import as_sequence_level
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.estimators.recipes.weightings import advantage_of_values, own_advantages, own_name, weighting_names

#: Fields of a Batch that every run has.
_ALWAYS = {
    "logprobs", "old_logprobs", "entropy", "truncated", "sum_pi_squared", "sq_norms", "token_rewards", "importance",
}  # fmt: skip
_OF_PROBES = {"token_energy", "token_cross"}


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
    chosen = [get(label) for label in (*section.estimators, section.reference)]
    recipes = [one for one in chosen if isinstance(one, Recipe) and one.level == "token"]
    available = [one for one in recipes if "ref_logprobs" not in one.needs or experiment.reference_policy]
    advantages: tuple[str, ...] = ()
    if not experiment.measurement.token_probes:
        batch = _trial_batch_of(experiment)
        own = (advantage for one in chosen if (advantage := own_advantages(one, batch)))
        advantages = tuple(own_name(advantage) for advantage in dict.fromkeys(own))
    on_policy = _names(one for one in available if _varies_on_policy(one))
    return PossibleWeightings(_names(available), on_policy, advantages)


def _varies_on_policy(recipe: Recipe) -> bool:
    mask = recipe.mask.definition
    return (mask.level == "token" and not mask.of_ratios) or recipe.kl.definition.level == "token"


def _names(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in recipes for name in weighting_names(one)))


def check(experiment: Experiment) -> None:
    """Warn of estimators whose inputs the run will not measure; refuse one of second moments that needs any."""
    _check_estimator_of_moments(experiment.measurement.second_moments)
    for sentence in dict.fromkeys(_not_measured(experiment)):
        warnings.warn(sentence, UserWarning, stacklevel=4)


def _check_estimator_of_moments(second_moments: str | None) -> None:
    if (estimate := estimate_section(second_moments)) is None:
        return
    with naming("measurement.second_moments"):
        one = get(estimate.estimator)
    missing = [need for need in one.needs if need not in _ALWAYS - {"sq_norms"} and not need.startswith(COLUMN)]
    if missing:
        raise ValueError(
            f"measurement.second_moments: {one.label} needs {' and '.join(missing)}, which is not known before "
            "gradients are measured: estimate second moments under another estimator, such as rloo"
        )


def _not_measured(experiment: Experiment) -> Iterator[str]:
    """Write a sentence for each estimator whose row will be NaN, with the reason."""
    measured = set(_ALWAYS)
    if experiment.measurement.token_probes:
        measured |= _OF_PROBES
    if experiment.sampling.greedy:
        measured.add("greedy_rewards")
    if experiment.reference_policy:
        measured.add("ref_logprobs")
    if experiment.values.fitted or experiment.values.monte_carlo:
        measured.add("values")
    for one in map(get, experiment.variance.estimators):
        missing = [need for need in one.needs if need not in measured and not need.startswith(COLUMN)]
        if missing:
            remedies = "; ".join(f"{need}: {how_to_get(need)}" for need in missing)
            yield (
                f"{one.label} needs {' and '.join(missing)}, which this run will not measure, so its row will be NaN "
                f"({remedies})"
            )
        elif "values" in one.needs and (reason := _wrong_values(experiment, one)):
            yield f"{reason}; the row of {one.label} will be NaN"
        elif not experiment.measurement.token_probes and _weights_tokens(one, experiment):
            by_share = isinstance(one, Recipe) and one.mask.name == "top_entropy" and one.advantage.level != "token"
            threshold = ", or give the mask a threshold in nats" if by_share else ""
            yield (
                f"{one.label} weights each token, and this run measures whole completions, so its row will be NaN: "
                f"set measurement.token_probes, for example to 32{threshold}"
            )


def _wrong_values(experiment: Experiment, one: Estimator | Recipe) -> str | None:
    """Return why an estimator cannot use the kind of state values that the run makes; None where it can."""
    try:
        one.weights(_trial_batch_of(experiment))
    except ValueError as error:
        return str(error)
    return None


def _weights_tokens(one: Estimator | Recipe, experiment: Experiment) -> bool:
    """Return whether weights differ along a completion in a way that depends on the batch, so that no run measures them
    as further weightings; those of ReMax with a terminal reward do not differ.
    """
    advantage = one.advantage if isinstance(one, Recipe) else one
    if not advantage.definition.checked:
        return advantage.level == "token"
    if advantage_of_values(one):
        return own_advantages(one, _trial_batch_of(experiment)) is None
    if isinstance(one, Recipe) and weighting_names(one):
        return False
    return as_sequence_level(one, trial_batch().with_fields(old_logprobs=None)).level == "token"


def _trial_batch_of(experiment: Experiment) -> Batch:
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
