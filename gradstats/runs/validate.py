"""Checks of an experiment before anything is sampled or loaded."""

from __future__ import annotations

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.config.options import estimate_section
from gradstats.config.sections import ExecutionSection
from gradstats.estimators import by_label, needs
from gradstats.prompts import load
from gradstats.rewards import grading
from gradstats.system.environment import installed


def _check_second_moments(experiment: Experiment) -> None:
    """Refuse second moments that are not on file."""
    second_moments = experiment.measurement.second_moments
    if second_moments is not None and estimate_section(second_moments) is None:
        from gradstats.gradients.metric import moments_file  # loads torch

        moments_file(second_moments)


def _check_revisions(experiment: Experiment) -> None:
    """Refuse a revision that the embedded policy does not have, also where only a later step would load it."""
    policy, sampling, kl = experiment.policy, experiment.sampling_policy, experiment.kl_reference
    for role, one in (("policy", policy), ("behaviour_policy", sampling), ("reference_policy", kl)):
        if one is not None and one.name == "embedded" and one.revision is not None:
            from gradstats.policy.checkpoint import refuse_unknown_checkpoint  # loads torch

            refuse_unknown_checkpoint(one.revision, f"{role}.revision")


def check_names(experiment: Experiment) -> None:
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure.

    Each registry checks its own part; what sections say of one another is checked as they are read.
    """
    of_names = (by_label.check, load.check, grading.check, registry.check, needs.check)
    for check in (*of_names, _check_second_moments, _check_revisions):
        check(experiment)


def require_execution(section: ExecutionSection) -> None:
    """Refuse settings that nothing follows, and an executor that is not installed."""
    if section.executor == "local" and section.address is not None:
        raise ValueError(
            f"execution.address is {section.address}, and the executor local starts its workers on this machine: "
            "choose --executor ray, or leave it out"
        )
    if section.executor == "ray" and installed("ray") is None:
        raise ImportError(
            "execution.executor is ray, which is not installed: pip install 'gradstats[ray]', or run with "
            "--executor local"
        )
    if section.gpus_per_worker and section.gpus_per_worker < section.ranks_per_worker:
        raise ValueError(
            f"execution.gpus_per_worker is {section.gpus_per_worker}, but each of the {section.ranks_per_worker} ranks "
            f"of a worker needs a GPU of its own: set it to {section.ranks_per_worker}"
        )
