"""From an experiment to its problems, its policy and the plan of what to sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradstats.config.experiment import Experiment

if TYPE_CHECKING:
    from gradstats.policy.policy import Policy
    from gradstats.prompts import Problem
    from gradstats.sampling.plan import SamplingPlan


def sampling_plan(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> SamplingPlan:
    """Load the problems and the policy of an experiment, at the given revisions, and form its batches.

    ``progress`` is as for :func:`gradstats.load_policy`, also in the other functions.
    """
    # torch and transformers are imported here, so that redrawing a finished run does not load them.
    from gradstats.sampling.plan import SamplingPlan

    problems = experiment_problems(experiment, revisions)
    return SamplingPlan.make(behaviour_policy(experiment, revisions, progress), problems, experiment.sampling)


def experiment_problems(experiment: Experiment, revisions: dict[str, str | None]) -> list[Problem]:
    """Load the problems of an experiment, at the revision that the run recorded."""
    from gradstats.prompts.load import load_prompts

    prompts = experiment.prompts
    pinned = {"revision": revisions["prompts"]} if revisions.get("prompts") else {}
    return load_prompts(prompts.source, prompts.n, rng=prompts.seed, **(prompts.settings | pinned))


def behaviour_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy:
    """Load the policy that draws the completions: the experiment's, with the changes of ``behaviour_policy``."""
    if not experiment.behaviour_policy:
        return experiment_policy(experiment, revisions, progress)
    changed = experiment.sampling_policy
    pinned = revisions if {"name", "revision"}.isdisjoint(experiment.behaviour_policy) else {}
    return experiment_policy(experiment.model_copy(update={"policy": changed}), pinned, progress)


def reference_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy | None:
    """Load the reference of a KL term, the policy with the changes of ``reference_policy``; None without these."""
    changed = experiment.kl_reference
    if changed is None:
        return None
    pinned = revisions if {"name", "revision"}.isdisjoint(experiment.reference_policy) else {}
    return experiment_policy(experiment.model_copy(update={"policy": changed}), pinned, progress)


def experiment_policy(experiment: Experiment, revisions: dict[str, str | None], progress: bool = True) -> Policy:
    """Load the policy of an experiment, at the revision that the run recorded; in a group of ranks, a part of it."""
    from gradstats.policy.policy import load_policy
    from gradstats.policy.sharding import in_group

    section = experiment.policy
    options = section.arguments(revision=revisions.get("policy") or section.revision)
    sharded = experiment.execution.ranks_per_worker > 1 and in_group()
    return load_policy(section.name, **options, sharded=sharded, progress=progress)
