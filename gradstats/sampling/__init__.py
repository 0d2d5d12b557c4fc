"""From prompts to rollouts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from gradstats.policy import Policy
from gradstats.progress import progress_bar
from gradstats.prompts.problem import Problem
from gradstats.rewards.grading import Grader, RewardSpec
from gradstats.rollouts import Rollouts
from gradstats.sampling.settings import SamplerSettings
from gradstats.sampling.transformers_sampler import Completion, generate, stop_token_ids
from gradstats.tally import warn_ungraded
from gradstats.threads import suitable_threads

__all__ = ["SamplerSettings", "SamplingPlan", "sample"]


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
    template_options: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Rollouts:
    """Sample completions of each problem from a policy and score them.

    By default every token is drawn from exactly the distribution whose log-probability is measured later.
    Nothing is inherited from the model's ``generation_config``; what it would have changed is warned about once
    and recorded.

    Args:
        policy: the policy.
        problems: what to ask, see :func:`gradstats.load_prompts`.
        group_size: completions of each problem.
        max_new_tokens: cap on a completion's tokens.
        temperature: the sampler's temperature; the policy's when None.
        top_p: nucleus mass; 1 keeps every token.
        top_k: number of tokens kept; 0 keeps all.
        min_p: share of the likeliest token's probability below which tokens are dropped; 0 keeps all.
        repetition_penalty: 1 leaves the logits alone.
        reward: a name ("math", "exact", "embedded", "reasoning_gym"), "module:function", a function
            ``(completion_text, problem) -> float``, several with weights (``{"math": 1.0, "module:format": 0.1}``,
            or strings "name=weight"), or None for the one that suits the problem set.
        rng: seed; the same seed on the same machine gives the same completions.
        batch_size: completions drawn together.
        system_prompt: a system message for the chat template.
        template_options: further variables for the chat template.
        progress: show a progress bar.

    Returns:
        The rollouts, ordered by problem and sample, with ``sampler_logprobs`` and all settings in the metadata.

    Raises:
        ValueError: for settings out of range, no problems, repeated prompt ids, or a prompt too long for the model.
    """
    settings = SamplerSettings(
        max_new_tokens,
        policy.temperature if temperature is None else temperature,
        top_p,
        top_k,
        min_p,
        repetition_penalty,
    )
    plan = SamplingPlan.make(
        policy, problems, settings, group_size, rng, batch_size, system_prompt, template_options, reward
    )
    plan.warn_overridden()
    parts = []
    with progress_bar("sampling", plan.n_completions, shown=progress) as report:
        for batch in range(plan.n_batches):
            parts.append(plan.draw(batch, report.tokens))
            report.advance(len(plan.rows[batch]))
    rollouts = Rollouts.concatenate(parts)
    place = {problem.prompt_id: index for index, problem in enumerate(problems)}
    by_problem = [
        (place[prompt_id], sample_id)
        for prompt_id, sample_id in zip(rollouts.prompt_id, rollouts.sample_id, strict=True)
    ]
    warn_ungraded(rollouts.metadata.get("grading"))
    return rollouts.select(sorted(range(len(rollouts)), key=by_problem.__getitem__))


@dataclass(frozen=True)
class SamplingPlan:
    """Which completions are drawn together, fixed before the first is drawn.

    Batches hold prompts of similar length (whose completions tend to be of similar length too), and each has a
    seed of its own: any batch can be drawn alone, in any order, and comes out the same.

    Attributes:
        rows: for each batch, pairs of problem index and sample number.
    """

    policy: Policy
    problems: Sequence[Problem]
    prompt_tokens: list[list[int]]
    settings: SamplerSettings
    group_size: int
    seed: int
    reward: Grader
    rows: list[list[tuple[int, int]]]
    metadata: dict[str, Any]

    @classmethod
    def make(
        cls,
        policy: Policy,
        problems: Sequence[Problem],
        settings: SamplerSettings,
        group_size: int,
        seed: int,
        batch_size: int = 64,
        system_prompt: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        reward: RewardSpec = None,
    ) -> SamplingPlan:
        """Encode the prompts and form the batches; arguments as for :func:`sample`."""
        for name, value in (("group_size", group_size), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        if not problems:
            raise ValueError("problems is empty: there is nothing to sample")
        if len({problem.prompt_id for problem in problems}) < len(problems):
            raise ValueError("problems repeat a prompt_id: names must be unique, since groups are formed by them")
        tokens = [
            policy.encode_prompt(problem.prompt, system_prompt=system_prompt, template_options=template_options)
            for problem in problems
        ]
        by_length = sorted(range(len(problems)), key=lambda index: (len(tokens[index]), index))
        pairs = [(index, number) for index in by_length for number in range(group_size)]
        rows = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
        grader = Grader.make(reward, problems)
        metadata = {
            "policy": policy.describe(),
            "sampler": {"engine": "transformers", **asdict(settings)},
            "group_size": group_size,
            "batch_size": batch_size,
            "seed": seed,
            "reward": grader.describe(),
            "system_prompt": system_prompt,
            "template_options": dict(template_options or {}),
            "stop_token_ids": stop_token_ids(policy),
            "generation_config_not_followed": settings.overridden(policy.model.generation_config),
            "versions": {name: version(name) for name in ("gradstats", "torch", "transformers")},
        }
        return cls(policy, problems, tokens, settings, group_size, seed, grader, rows, metadata)

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.rows)

    @property
    def n_completions(self) -> int:
        """Number of completions in all batches."""
        return sum(map(len, self.rows))

    def warn_overridden(self) -> None:
        """Warn of what the model's generation_config would have changed."""
        theirs = self.metadata["generation_config_not_followed"]
        if theirs:
            listed = ", ".join(f"{key}={value}" for key, value in theirs.items())
            warnings.warn(
                f"the model's generation_config asks for {listed}; it is not followed: pass these settings to sample() "
                "to draw with them",
                UserWarning,
                stacklevel=3,
            )

    def draw(self, batch: int, on_tokens: Callable[[int], None] = lambda count: None) -> Rollouts:
        """Draw and score one batch."""
        rows = self.rows[batch]
        seed = int(np.random.SeedSequence([self.seed, batch]).generate_state(1)[0])
        prompts = [self.prompt_tokens[index] for index, _ in rows]
        with suitable_threads(self.policy):
            completions = generate(self.policy, prompts, self.settings, seed, on_tokens)
        return self._table(rows, completions)

    def _table(self, rows: list[tuple[int, int]], completions: list[Completion]) -> Rollouts:
        decode = self.policy.tokenizer.decode
        texts = [decode(completion.tokens, skip_special_tokens=True) for completion in completions]
        problems = [self.problems[index] for index, _ in rows]
        rewards, tally = self.reward.grade(texts, problems)
        return Rollouts.from_sequences(
            prompt_tokens=[self.prompt_tokens[index] for index, _ in rows],
            completion_tokens=[completion.tokens for completion in completions],
            rewards=rewards,
            prompt_ids=[problem.prompt_id for problem in problems],
            sample_ids=[number for _, number in rows],
            sampler_logprobs=[completion.logprobs for completion in completions],
            finish_reason=[completion.finish_reason for completion in completions],
            prompt_text=[problem.prompt for problem in problems],
            completion_text=texts,
            metadata=self.metadata | {"grading": tally},
        )
