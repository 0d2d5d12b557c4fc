"""From prompts to rollouts: draw the batches of a plan, in memory or shard by shard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from gradstats.config.sections import SamplingSection
from gradstats.config.validation import takes
from gradstats.policy.policy import Policy
from gradstats.prompts.problem import Problem
from gradstats.rewards.grading import RewardSpec
from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.sampling.plan import SamplingPlan, answers_path, draw_keeping_answers, warn_of_rollouts
from gradstats.sampling.sampler import Sampler
from gradstats.system.progress import progress_bar
from gradstats.system.shards import Shards


def draw_batches(plan: SamplingPlan, shards: Shards[Rollouts] | None, *, progress: bool) -> list[Rollouts]:
    """Draw the batches of a plan that are not finished, and return all of them in order."""
    finished = [] if shards is None else [shards.read_one(batch) for batch in shards.finished(plan.n_batches)]
    n_finished = sum(map(len, finished))
    with progress_bar("sampling", plan.n_completions, done=n_finished, shown=progress) as report:
        for drawn in finished:
            report.completions(drawn.rewards, drawn.lengths, before=True)

        def draw(batch: int) -> Rollouts:
            if shards is None:
                drawn = plan.draw(batch, report.tokens)
            else:
                path = answers_path(shards.folder, batch)
                drawn = draw_keeping_answers(plan.sampler, path, lambda: plan.draw(batch, report.tokens))
            report.completions(drawn.rewards, drawn.lengths)
            return drawn

        if shards is None:
            return [draw(batch) for batch in range(plan.n_batches)]
        shards.make_missing(plan.n_batches, draw)
    return shards.read_all(plan.n_batches)


@takes(SamplingSection)
def sample(
    policy: Policy,
    problems: Sequence[Problem],
    *,
    reward: RewardSpec = None,
    rng: int = 0,
    sampler: str | Sampler = "transformers",
    keep_in: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Rollouts:
    """Sample completions of each problem from a policy and score them.

    By default every token is drawn from exactly the distribution whose log-probability is measured later. Nothing is
    inherited from the model's ``generation_config``; a warning lists once what it would have changed, and the metadata
    record it.

    Args:
        policy: the policy.
        problems: the problems, see :func:`gradstats.load_prompts`.
        reward: name of the reward (``exact``, ``math``, ``reasoning_gym``, ``embedded``), or ``module:function``, or
            ``path/to/file.py:function``, or several as ``name=weight``; the problem set's own by default. A function
            ``(completion_text, problem) -> float`` and a mapping such as ``{"math": 1.0, "module:format": 0.1}`` work
            too.
        rng: seed of the sampler; the same seed on the same machine gives the same completions.
        template_options: variables of the chat template, as in ``{"enable_thinking": False}``.
        sampler: the engine: "transformers", "continuous" (its continuous batching), "vllm", or "openai" for a server of
            that API; or your own :class:`Sampler`.
        sampler_options: options of the engine, as in ``{"concurrency": 16, "timeout_seconds": 60}``; see
            :mod:`gradstats.sampling.plan`.
        keep_in: a folder in which finished batches are kept. The same call resumes an interrupted one from them; the
            folder is not removed afterwards.
        progress: show a progress bar.
        **settings: as :class:`gradstats.config.sections.SamplingSection` declares them.

    Returns:
        The rollouts, ordered by problem and sample, with ``sampler_logprobs`` where the engine reports them and all
        settings in the metadata.

    Raises:
        ValueError: for settings out of range, no problems, repeated prompt ids, or a prompt too long for the model.
        ConnectionError, TimeoutError: when a server fails repeatedly.

    Example:
        >>> import gradstats as gs
        >>> problems = gs.load_prompts("embedded", n=2, rng=0)
        >>> rollouts = gs.sample(
        ...     gs.load_policy("embedded"), problems, group_size=2, max_new_tokens=16, rng=0, progress=False
        ... )
        >>> len(rollouts), len(set(rollouts.prompt_id)), int(rollouts.lengths.max())
        (4, 2, 16)
    """
    named = {"sampler": sampler} if isinstance(sampler, str) else {}
    section = SamplingSection.of_arguments(settings, reward=None if callable(reward) else reward, seed=rng, **named)
    plan = SamplingPlan.make(
        policy,
        problems,
        section,
        sampler=None if isinstance(sampler, str) else sampler,
        reward=reward if callable(reward) else None,
    )
    plan.warn_overridden()
    with ExitStack() as opened:
        if isinstance(sampler, str):  # an engine that the caller has opened stays open
            opened.callback(plan.close)
        shards = None
        if keep_in is not None:
            kept = Shards.resume(
                keep_in, plan.made_with(), ".parquet", read_rollouts, Rollouts.to_parquet, stamped=True
            )
            shards = opened.enter_context(kept)
        rollouts = Rollouts.concatenate(draw_batches(plan, shards, progress=progress))
    place = {problem.prompt_id: index for index, problem in enumerate(problems)}
    by_problem = [
        (place[prompt_id], sample_id)
        for prompt_id, sample_id in zip(rollouts.prompt_id, rollouts.sample_id, strict=True)
    ]
    warn_of_rollouts(rollouts)
    return rollouts.select(sorted(range(len(rollouts)), key=by_problem.__getitem__))
