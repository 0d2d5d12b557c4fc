"""Checks of an experiment's names against the registries, before anything is sampled or loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from gradstats import estimators
from gradstats.config.experiment import Experiment
from gradstats.estimators import Estimator, Recipe
from gradstats.estimators.batch import COLUMN, how_to_get
from gradstats.rewards.grading import Grader

Result = TypeVar("Result")

#: Fields of a Batch that every run has.
_ALWAYS = {
    "logprobs",
    "old_logprobs",
    "entropy",
    "truncated",
    "sum_pi_squared",
    "sq_norms",
    "token_rewards",
    "importance",
}
_OF_PROBES = {"token_energy", "token_cross"}


def check_names(experiment: Experiment) -> None:
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure.

    Raises:
        ValueError: for an unknown name, parameters that are not accepted, or settings that contradict one another;
            names the setting.
    """
    section = experiment.variance
    chosen = [_found("variance.estimators", label) for label in section.estimators]
    reference = _found("variance.reference", section.reference)
    if reference.across_groups:
        raise ValueError(
            f"variance.reference: {reference.label} is a batch-level estimator: choose 'rloo', for example"
        )
    _check_rewards(experiment)
    _check_group_sizes(experiment)
    _check("behaviour_policy", lambda: experiment.sampling_policy)
    if experiment.length_scaling.published is not None:
        from gradstats import data

        known = data.names()
        if experiment.length_scaling.published not in known:
            raise ValueError(
                f"length_scaling.published is {experiment.length_scaling.published!r}: choose one of {', '.join(known)}"
            )
    for sentence in dict.fromkeys(_not_measured(experiment, chosen)):
        warnings.warn(sentence, UserWarning, stacklevel=3)


def _found(setting: str, label: str) -> Estimator | Recipe:
    return _check(setting, lambda: estimators.get(label))


def _check(setting: str, action: Callable[[], Result]) -> Result:
    try:
        return action()
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise ValueError(f"{setting}: {error.args[0]}") from error


def _check_rewards(experiment: Experiment) -> None:
    _check("sampling.reward", lambda: Grader.make(experiment.sampling.reward, []))


def _check_group_sizes(experiment: Experiment) -> None:
    drawn, asked = experiment.sampling.group_size, experiment.variance.group_size
    for size in asked if isinstance(asked, list) else [] if asked is None else [asked]:
        if size > drawn:
            raise ValueError(
                f"variance.group_size: groups of {size} cannot be formed from the {drawn} completions of each prompt "
                f"(sampling.group_size): sample more, or choose at most {drawn}"
            )


def _not_measured(experiment: Experiment, chosen: Iterable[Estimator | Recipe]) -> Iterable[str]:
    """Write a sentence for each estimator whose row will be NaN, with the reason."""
    measured = set(_ALWAYS)
    if experiment.measurement.token_probes:
        measured |= _OF_PROBES
    if experiment.sampling.greedy:
        measured.add("greedy_rewards")
    for one in chosen:
        missing = [need for need in one.needs if need not in measured and not need.startswith(COLUMN)]
        if missing:
            remedies = "; ".join(f"{need}: {how_to_get(need)}" for need in missing)
            yield (
                f"{one.label} needs {' and '.join(missing)}, which this run will not measure, so its row will be NaN "
                f"({remedies})"
            )
        elif not experiment.measurement.token_probes and _weights_tokens(one):
            yield (
                f"{one.label} weights each token, and this run measures whole completions, so its row will be NaN: "
                "set measurement.token_probes, for example to 32"
            )


def _weights_tokens(one: Estimator | Recipe) -> bool:
    """Return whether the advantages themselves differ along a completion; ReMax's do not for a terminal reward."""
    advantage = one.advantage if isinstance(one, Recipe) else one
    return advantage.level == "token" and bool(advantage.needs) and "greedy_rewards" not in advantage.needs
