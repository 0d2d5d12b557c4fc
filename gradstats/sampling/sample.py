"""From prompts to rollouts: draw the batches of a plan, in memory or shard by shard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gradstats.config.sections import SamplingSection
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


def sample(
    policy: Policy,
    problems: Sequence[Problem],
    *,
    group_size: int = 8,
    max_new_tokens: int = 1500,
    temperature: float | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    reward: RewardSpec = None,
    rng: int = 0,
    batch_size: int = 64,
    system_prompt: str | None = None,
    template_options: Mapping[str, object] | None = None,
    sampler: str | Sampler = "transformers",
    base_url: str | None = None,
    sampler_options: Mapping[str, object] | None = None,
    greedy: bool = False,
    keep_in: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Rollouts:
    """Sample completions of each problem from a policy and score them.

    By default every token is drawn from exactly the distribution whose log-probability is measured later. Nothing is
    inherited from the model's ``generation_config``; a warning lists once what it would have changed, and the metadata
    record it.

    Args:
        policy: the policy.
        problems: the problems, see :func:`gradstats.load_prompts`.
        group_size: completions of each prompt.
        max_new_tokens: cap on a completion's tokens.
        temperature: the sampler's temperature; the policy's own by default.
        top_p: nucleus mass; 1 keeps every token.
        top_k: number of tokens kept; 0 keeps all.
        min_p: share of the likeliest token's probability below which tokens are dropped; 0 keeps all.
        repetition_penalty: penalty on tokens that have occurred; 1 leaves the logits unchanged.
        reward: name of the reward, or ``module:function``, or ``path/to/file.py:function``, or several as
            ``name=weight``; the problem set's own by default. Names are "math", "exact", "embedded" and
            ``"reasoning_gym"``. A function ``(completion_text, problem) -> float`` and a mapping such as
            ``{"math": 1.0, "module:format": 0.1}`` work too.
        rng: seed of the sampler; the same seed on the same machine gives the same completions.
        batch_size: completions drawn together.
        system_prompt: a system message for the chat template.
        template_options: variables of the chat template, as in ``{"enable_thinking": False}``.
        sampler: the engine: "transformers", "continuous" (its continuous batching), "vllm", or "openai" for a server of
            that API; or your own :class:`Sampler`.
        base_url: the server's address, as in ``http://localhost:8000/v1``.
        sampler_options: options of the engine, as in ``{"concurrency": 16, "timeout_seconds": 60}``; see
            :mod:`gradstats.sampling.plan`.
        greedy: also draw one greedy completion of each prompt, whose reward is ReMax's baseline.
        keep_in: a folder in which finished batches are kept. The same call resumes an interrupted one from them; the
            folder is not removed afterwards.
        progress: show a progress bar.

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
    options: dict[str, Any] = {
        "group_size": group_size,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "reward": None if callable(reward) else reward,
        "seed": rng,
        "batch_size": batch_size,
        "system_prompt": system_prompt,
        "template_options": dict(template_options or {}),
        "sampler_options": dict(sampler_options or {}),
        "greedy": greedy,
    }
    if isinstance(sampler, str):
        options |= {"sampler": sampler, "base_url": base_url}
    plan = SamplingPlan.make(
        policy,
        problems,
        SamplingSection(**options),
        sampler=None if isinstance(sampler, str) else sampler,
        reward=reward if callable(reward) else None,
    )
    plan.warn_overridden()
    if keep_in is None:
        rollouts = Rollouts.concatenate(draw_batches(plan, None, progress=progress))
    else:
        made_with = plan.made_with()
        with Shards.resume(keep_in, made_with, ".parquet", read_rollouts, Rollouts.to_parquet, stamped=True) as shards:
            rollouts = Rollouts.concatenate(draw_batches(plan, shards, progress=progress))
    place = {problem.prompt_id: index for index, problem in enumerate(problems)}
    by_problem = [
        (place[prompt_id], sample_id)
        for prompt_id, sample_id in zip(rollouts.prompt_id, rollouts.sample_id, strict=True)
    ]
    warn_of_rollouts(rollouts)
    return rollouts.select(sorted(range(len(rollouts)), key=by_problem.__getitem__))
