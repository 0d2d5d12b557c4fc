"""Checks of an experiment's names against the registries, before anything is sampled or loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from gradstats import estimators
from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.config.options import adam_section, estimate_section
from gradstats.estimators import Batch, Estimator, Recipe
from gradstats.estimators.batch import COLUMN, how_to_get
from gradstats.estimators.ratios import along_completions
from gradstats.estimators.recipes.weightings import advantage_of_values, own_advantages, weighting_names
from gradstats.prompts.load import generates, required
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
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure."""
    section = experiment.variance
    chosen = [_found("variance.estimators", label) for label in section.estimators]
    reference = _found("variance.reference", section.reference)
    if reference.across_groups:
        raise ValueError(
            f"variance.reference: {reference.label} is a batch-level estimator: choose 'rloo', for example"
        )
    for setting, one in (*(("variance.estimators", one) for one in chosen), ("variance.reference", reference)):
        _check_weights(setting, one)
    if generates(experiment.prompts.source):
        _check("prompts", lambda: required(experiment.prompts.n, experiment.prompts.source))
    _check_rewards(experiment)
    _check_ranks(experiment)
    _check_second_moments(experiment)
    _check_group_sizes(experiment)
    for name, settings in experiment.analyses.items():
        _check_question(name, settings, experiment)
    _check("behaviour_policy", lambda: experiment.sampling_policy)
    _check("reference_policy", lambda: experiment.kl_reference)
    n_prompts, n_folds = experiment.prompts.n, experiment.values.n_folds
    if experiment.values.fitted and n_prompts is not None and n_prompts <= n_folds:
        raise ValueError(
            f"values.n_folds: {n_folds} folds need at least {n_folds + 1} prompts, and prompts.n is {n_prompts}: "
            "sample more prompts, or choose fewer folds"
        )
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


def _check_weights(setting: str, one: Estimator | Recipe) -> None:
    """Refuse parameters that contradict one another, by computing weights once on a few made-up completions.

    Functions of a user are left out: what data they accept is unknown.
    """
    advantage = one.advantage if isinstance(one, Recipe) else one
    if not advantage.definition.checked:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.weights(_trial_batch())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{setting}: {one.label} cannot be computed: {error}") from error


def _trial_batch() -> Batch:
    """Return 4 prompts of 4 completions with every field and ratios that vary."""
    rng = np.random.default_rng(0)
    n, width = 16, 6
    groups = np.repeat(np.arange(4), 4)
    logprobs = -rng.uniform(0.1, 1.0, (n, width))
    return Batch(
        rewards=np.tile([0.0, 1.0, 1.0, 0.0], 4),
        lengths=rng.integers(2, width + 1, n),
        groups=groups,
        logprobs=logprobs,
        old_logprobs=logprobs + 0.1 * rng.normal(size=(n, width)),
        ref_logprobs=logprobs + 0.1 * rng.normal(size=(n, width)),
        entropy=rng.uniform(0.1, 1.0, (n, width)),
        sum_pi_squared=rng.uniform(0.2, 0.9, (n, width)),
        values=rng.uniform(0.0, 1.0, (n, width)),
        token_energy=rng.uniform(0.5, 1.5, (n, width)),
        token_cross=rng.uniform(0.5, 1.5, (n, width)),
        importance=rng.uniform(0.8, 1.2, (n, width)),
        greedy_rewards=np.array([0.0, 1.0, 1.0, 0.0])[groups],
        sq_norms=rng.uniform(1.0, 9.0, n),
        truncated=np.arange(n) % 5 == 0,
    )


def _check_rewards(experiment: Experiment) -> None:
    _check("sampling.reward", lambda: Grader.make(experiment.sampling.reward, []))


def _check_ranks(experiment: Experiment) -> None:
    """Refuse what needs whole parameters where ranks hold parts of them: measuring would, after all is sampled."""
    section = experiment.measurement
    if experiment.execution.ranks_per_worker == 1:
        return
    for name, refused in (
        ("engine", section.engine in ("vmap", "loop")),
        ("token_probes", section.token_probes > 0),
        ("metric", adam_section(section.metric) is not None),
    ):
        if refused:
            raise ValueError(
                f"measurement.{name} is {getattr(section, name)!r}, which needs whole parameters, and "
                f"execution.ranks_per_worker is {experiment.execution.ranks_per_worker}, whose ranks hold parts of "
                "them: measure with engine ghost, without token_probes and in the Euclidean metric, or with one rank"
            )


def _check_second_moments(experiment: Experiment) -> None:
    second_moments = experiment.measurement.second_moments
    if second_moments is None:
        return
    estimate = estimate_section(second_moments)
    if estimate is None:
        from gradstats.gradients.metric import moments_file

        moments_file(second_moments)
        return
    one = _found("measurement.second_moments", estimate.estimator)
    missing = [need for need in one.needs if need not in _ALWAYS - {"sq_norms"} and not need.startswith(COLUMN)]
    if missing:
        raise ValueError(
            f"measurement.second_moments: {one.label} needs {' and '.join(missing)}, which is not known before "
            "gradients are measured: estimate second moments under another estimator, such as rloo"
        )
    n_prompts = experiment.prompts.n
    if n_prompts is not None and int(n_prompts * estimate.share) < estimate.prompts_per_batch:
        raise ValueError(
            f"measurement.second_moments: a share of {estimate.share:g} of {n_prompts} prompts does not fill a batch "
            f"of {estimate.prompts_per_batch}: sample more prompts, raise share, or lower prompts_per_batch"
        )


def _check_group_sizes(experiment: Experiment) -> None:
    drawn, asked = experiment.sampling.group_size, experiment.variance.group_size
    for size in asked if isinstance(asked, list) else [] if asked is None else [asked]:
        if size > drawn:
            raise ValueError(
                f"variance.group_size: groups of {size} cannot be formed from the {drawn} completions of each prompt "
                f"(sampling.group_size): sample more, or choose at most {drawn}"
            )


def _check_question(name: str, settings: bool | dict[str, object], experiment: Experiment) -> None:
    analysis = _check("analyses", lambda: registry.get(name))
    if settings is not False or analysis.section:
        given = settings if isinstance(settings, dict) else {}
        _check(f"analyses.{name}", lambda: analysis.refuse_settings(given, experiment.variance))


def _not_measured(experiment: Experiment, chosen: Iterable[Estimator | Recipe]) -> Iterable[str]:
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
    for one in chosen:
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
            threshold = ", or give the mask a threshold in nats" if _masks_by_share(one) else ""
            yield (
                f"{one.label} weights each token, and this run measures whole completions, so its row will be NaN: "
                f"set measurement.token_probes, for example to 32{threshold}"
            )


def _masks_by_share(one: Estimator | Recipe) -> bool:
    return isinstance(one, Recipe) and one.mask.name == "top_entropy" and one.advantage.level != "token"


def trial_batch_of(experiment: Experiment) -> Batch:
    """Return a small batch with the kinds of state values that a run makes; ratios vary where they are meant to."""
    batch, section = _trial_batch(), experiment.values
    assert batch.values is not None
    inside_steps = np.arange(batch.mask.shape[1]) > 0  # values of prefixes are known where steps begin
    return batch.with_fields(
        old_logprobs=batch.old_logprobs if experiment.is_off_policy else None,
        ref_logprobs=batch.ref_logprobs if experiment.reference_policy else None,
        values=np.where(inside_steps, np.nan, batch.values) if section.monte_carlo else None,
        fitted_values=batch.values if section.fitted else None,
    )


def _wrong_values(experiment: Experiment, one: Estimator | Recipe) -> str | None:
    """Return why an estimator cannot use the kind of state values that the run makes; None where it can."""
    batch = trial_batch_of(experiment)
    try:
        one.weights(batch)
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
    return along_completions(one, _trial_batch().with_fields(old_logprobs=None)).level == "token"
