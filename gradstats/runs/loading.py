"""From an experiment to its problems, its policy and the plan of what to sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradstats.config.experiment import Experiment

if TYPE_CHECKING:
    from gradstats.policy.policy import Policy
    from gradstats.prompts import Problem
    from gradstats.sampling.plan import SamplingPlan


def sampling_plan(experiment: Experiment, revisions: dict[str, str | None]) -> SamplingPlan:
    """Load the problems and the policy of an experiment, at the given revisions, and form its batches."""
    # torch and transformers load here, so that a finished run is redrawn without them.
    from gradstats.sampling import SamplerSettings
    from gradstats.sampling.engines import open_sampler
    from gradstats.sampling.plan import SamplingPlan

    section = experiment.sampling
    problems = experiment_problems(experiment, revisions)
    policy = experiment_policy(experiment, revisions)
    settings = SamplerSettings(
        section.max_new_tokens,
        policy.temperature if section.temperature is None else section.temperature,
        section.top_p,
        section.top_k,
        section.min_p,
        section.repetition_penalty,
    )
    return SamplingPlan.make(
        policy,
        problems,
        settings,
        section.group_size,
        section.seed,
        section.batch_size,
        section.system_prompt,
        section.template_options,
        section.reward,
        sampler=open_sampler(section.sampler, policy, section.base_url, section.sampler_options),
        greedy=section.greedy,
    )


def experiment_problems(experiment: Experiment, revisions: dict[str, str | None]) -> list[Problem]:
    """Load the problems of an experiment, from the revision that the run keeps to."""
    from gradstats.prompts.load import load_prompts

    prompts = experiment.prompts
    pinned = {"revision": revisions["prompts"]} if revisions.get("prompts") else {}
    return load_prompts(prompts.source, prompts.n, rng=prompts.seed, **(prompts.settings | pinned))


def experiment_policy(experiment: Experiment, revisions: dict[str, str | None]) -> Policy:
    """Load the policy of an experiment, from the revision that the run keeps to."""
    from gradstats.policy.policy import load_policy

    settings = experiment.policy.model_dump(exclude={"name"})
    settings["revision"] = revisions.get("policy") or settings["revision"]
    return load_policy(experiment.policy.name, **settings)
