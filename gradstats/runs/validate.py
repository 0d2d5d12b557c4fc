"""Checks of an experiment's names against the registries, before anything is sampled or loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from gradstats import data, estimators
from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.config.options import adam_section, estimate_section
from gradstats.config.sections import PolicySection
from gradstats.config.validation import naming
from gradstats.estimators import by_label
from gradstats.estimators.batch import COLUMN
from gradstats.prompts import load
from gradstats.rewards import grading
from gradstats.runs.weightings import ALWAYS, not_measured


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
    with naming("measurement.second_moments"):
        one = estimators.get(estimate.estimator)
    missing = [need for need in one.needs if need not in ALWAYS - {"sq_norms"} and not need.startswith(COLUMN)]
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


def _check_questions(experiment: Experiment) -> None:
    for name, settings in experiment.analyses.items():
        with naming("analyses"):
            analysis = registry.get(name)
        if settings is not False or analysis.section:
            with naming(f"analyses.{name}"):
                analysis.refuse_settings(settings if isinstance(settings, dict) else {}, experiment.variance)


def _check_policies(experiment: Experiment) -> None:
    for name in ("behaviour_policy", "reference_policy"):
        with naming(name):
            PolicySection(**(experiment.policy.model_dump() | getattr(experiment, name)))


def _check_folds(experiment: Experiment) -> None:
    n_prompts, n_folds = experiment.prompts.n, experiment.values.n_folds
    if experiment.values.fitted and n_prompts is not None and n_prompts <= n_folds:
        raise ValueError(
            f"values.n_folds: {n_folds} folds need at least {n_folds + 1} prompts, and prompts.n is {n_prompts}: "
            "sample more prompts, or choose fewer folds"
        )


def _check_published(experiment: Experiment) -> None:
    published = experiment.length_scaling.published
    if published is not None and published not in data.names():
        raise ValueError(f"length_scaling.published is {published!r}: choose one of {', '.join(data.names())}")


#: What checks the parts of an experiment: the registries that know their names, and what relates several sections.
CHECKS: tuple[Callable[[Experiment], None], ...] = (
    by_label.check,
    load.check,
    grading.check,
    _check_ranks,
    _check_second_moments,
    _check_group_sizes,
    _check_questions,
    _check_policies,
    _check_folds,
    _check_published,
)


def check_names(experiment: Experiment) -> None:
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure."""
    for check in CHECKS:
        check(experiment)
    for sentence in dict.fromkeys(not_measured(experiment)):
        warnings.warn(sentence, UserWarning, stacklevel=3)
