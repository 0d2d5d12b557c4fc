"""Checks of an experiment before anything is sampled or loaded: its names, and what the run will not measure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from gradstats import estimators
from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.config.options import estimate_section
from gradstats.config.validation import naming
from gradstats.estimators import Estimator, Recipe, by_label
from gradstats.estimators.batch import COLUMN, how_to_get
from gradstats.estimators.by_label import trial_batch
from gradstats.estimators.ratios import as_sequence_level
from gradstats.estimators.recipes.weightings import advantage_of_values, own_advantages, weighting_names
from gradstats.prompts import load
from gradstats.rewards import grading
from gradstats.runs.weightings import trial_batch_of

#: Fields of a Batch that every run has.
_ALWAYS = {
    "logprobs", "old_logprobs", "entropy", "truncated", "sum_pi_squared", "sq_norms", "token_rewards", "importance",
}  # fmt: skip
_OF_PROBES = {"token_energy", "token_cross"}


def _check_second_moments(experiment: Experiment) -> None:
    """Refuse second moments that are not on file, and whose estimator needs a measurement."""
    second_moments = experiment.measurement.second_moments
    estimate = estimate_section(second_moments)
    if estimate is not None:
        with naming("measurement.second_moments"):
            one = estimators.get(estimate.estimator)
        missing = [need for need in one.needs if need not in _ALWAYS - {"sq_norms"} and not need.startswith(COLUMN)]
        if missing:
            raise ValueError(
                f"measurement.second_moments: {one.label} needs {' and '.join(missing)}, which is not known before "
                "gradients are measured: estimate second moments under another estimator, such as rloo"
            )
    elif second_moments is not None:
        from gradstats.gradients.metric import moments_file  # loads torch

        moments_file(second_moments)


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
    for one in map(estimators.get, experiment.variance.estimators):
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
        one.weights(trial_batch_of(experiment))
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
        return own_advantages(one, trial_batch_of(experiment)) is None
    if isinstance(one, Recipe) and weighting_names(one):
        return False
    return as_sequence_level(one, trial_batch().with_fields(old_logprobs=None)).level == "token"


def check_names(experiment: Experiment) -> None:
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure.

    Each registry checks its own part; what sections say of one another is checked as they are read.
    """
    for check in (by_label.check, load.check, grading.check, registry.check, _check_second_moments):
        check(experiment)
    for sentence in dict.fromkeys(_not_measured(experiment)):
        warnings.warn(sentence, UserWarning, stacklevel=3)
