"""From prompts to rollouts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from gradstats.parts import KeptParts, digest
from gradstats.policy import Policy
from gradstats.progress import progress_bar
from gradstats.prompts.problem import Problem
from gradstats.rewards.grading import Grader, RewardSpec
from gradstats.rollouts import Rollouts, read_rollouts, retokenised_sentence
from gradstats.sampling.engines import open_sampler
from gradstats.sampling.sampler import Completion, Sampler
from gradstats.sampling.settings import SamplerSettings
from gradstats.sampling.stop_tokens import stop_token_ids
from gradstats.tally import ungraded_sentence

__all__ = ["Completion", "Sampler", "SamplerSettings", "SamplingPlan", "sample"]


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
    sampler: str | Sampler = "transformers",
    base_url: str | None = None,
    sampler_options: Mapping[str, Any] | None = None,
    greedy: bool = False,
    keep_in: str | os.PathLike[str] | None = None,
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
        sampler: the engine: "transformers", "continuous" (transformers' continuous batching), "vllm", "openai" (any
            server of that API), or a :class:`Sampler` of your own.
        base_url: the server's address for "openai", such as ``http://localhost:8000/v1``.
        sampler_options: the engine's own options, see :mod:`gradstats.sampling.engines`.
        greedy: also draw one greedy completion of each problem, whose reward is ReMax's baseline.
        keep_in: a folder in which batches are kept as they finish; an interrupted call is taken up from them by the
            same call, and the folder is yours to remove in the end.
        progress: show a progress bar.

    Returns:
        The rollouts, ordered by problem and sample, with ``sampler_logprobs`` as far as the engine tells them and all
        settings in the metadata.

    Raises:
        ValueError: for settings out of range, no problems, repeated prompt ids, or a prompt too long for the model.
        ConnectionError, TimeoutError: when a server fails again and again.
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
        policy, problems, settings, group_size, rng, batch_size, system_prompt, template_options, reward,
        sampler=open_sampler(sampler, policy, base_url, sampler_options), greedy=greedy,
    )  # fmt: skip
    plan.warn_overridden()
    parts = []
    kept = None if keep_in is None else KeptParts(keep_in, plan.made_with())
    with progress_bar("sampling", plan.n_completions, shown=progress) as report:
        for batch in range(plan.n_batches):
            path = None if kept is None else kept.path(batch, ".parquet")
            before = path is not None and path.exists()
            parts.append(read_rollouts(path) if path is not None and before else plan.draw(batch, report.tokens))
            if path is not None and not before:
                parts[-1].to_parquet(path)
            report.completions(parts[-1].rewards, parts[-1].lengths, before=before)
    rollouts = Rollouts.concatenate(parts)
    place = {problem.prompt_id: index for index, problem in enumerate(problems)}
    by_problem = [
        (place[prompt_id], sample_id)
        for prompt_id, sample_id in zip(rollouts.prompt_id, rollouts.sample_id, strict=True)
    ]
    warn_of_rollouts(rollouts)
    return rollouts.select(sorted(range(len(rollouts)), key=by_problem.__getitem__))


def warn_of_rollouts(rollouts: Rollouts) -> None:
    """Warn of completions that a reward could not score, and of those whose token ids are not what was sampled."""
    for sentence in (ungraded_sentence(rollouts.metadata.get("grading")), retokenised_sentence(rollouts)):
        if sentence:
            warnings.warn(sentence, UserWarning, stacklevel=3)


@dataclass(frozen=True)
class SamplingPlan:
    """Which completions are drawn together, fixed before the first is drawn.

    Batches hold prompts of similar length (whose completions tend to be of similar length too), and each has a
    seed of its own: any batch can be drawn alone, in any order, and comes out the same.

    Attributes:
        rows: for each batch, pairs of problem index and sample number.
        sampler: the engine that draws.
        greedy: whether each problem also gets a greedy completion; then a batch holds whole groups.
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
    sampler: Sampler
    greedy: bool = False

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
        *,
        sampler: Sampler | None = None,
        greedy: bool = False,
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
        refuse_long_prompts(policy, problems, tokens, settings.max_new_tokens)
        sampler = open_sampler("transformers", policy) if sampler is None else sampler
        if greedy:
            batch_size = max(batch_size // group_size, 1) * group_size
        by_length = sorted(range(len(problems)), key=lambda index: (len(tokens[index]), index))
        pairs = [(index, number) for index in by_length for number in range(group_size)]
        rows = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
        grader = Grader.make(reward, problems)
        metadata = {
            "policy": policy.describe(),
            "sampler": {**sampler.describe(), **asdict(settings)},
            "group_size": group_size,
            "batch_size": batch_size,
            "seed": seed,
            "greedy": greedy,
            "reward": grader.describe(),
            "system_prompt": system_prompt,
            "template_options": dict(template_options or {}),
            "stop_token_ids": stop_token_ids(policy),
            "generation_config_not_followed": settings.overridden(policy.model.generation_config),
            "versions": {name: version(name) for name in ("gradstats", "torch", "transformers")},
        }
        return cls(policy, problems, tokens, settings, group_size, seed, grader, rows, metadata, sampler, greedy)

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.rows)

    @property
    def n_completions(self) -> int:
        """Number of completions in all batches."""
        return sum(map(len, self.rows))

    def made_with(self) -> dict[str, Any]:
        """Everything that decides what is drawn."""
        names = [problem.prompt_id for problem in self.problems]
        answers = [problem.answer for problem in self.problems]
        return self.metadata | {"problems": digest([names, self.prompt_tokens, answers])}

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
        # Its first word does not depend on how many are drawn: an engine with one seed a batch takes that.
        seeds = np.random.SeedSequence([self.seed, batch]).generate_state(len(rows)).tolist()
        prompts = [self.prompt_tokens[index] for index, _ in rows]
        completions = self.sampler.draw(prompts, self.settings, seeds, on_tokens)
        greedy = self._draw_greedy(rows, seeds, on_tokens) if self.greedy else None
        return self._table(rows, completions, seeds, greedy)

    def _draw_greedy(
        self, rows: list[tuple[int, int]], seeds: list[int], on_tokens: Callable[[int], None]
    ) -> dict[int, tuple[str, float]]:
        """Text and reward of the greedy completion of each problem in a batch."""
        indices = list(dict.fromkeys(index for index, _ in rows))
        prompts = [self.prompt_tokens[index] for index in indices]
        drawn = self.sampler.draw(prompts, self.settings.greedy(), seeds[: len(indices)], on_tokens)
        texts = [self._decode(completion) for completion in drawn]
        return {
            index: (text, self.reward(text, self.problems[index])) for index, text in zip(indices, texts, strict=True)
        }

    def _decode(self, completion: Completion) -> str:
        return self.policy.tokenizer.decode(completion.tokens, skip_special_tokens=True)

    def _table(
        self,
        rows: list[tuple[int, int]],
        completions: list[Completion],
        seeds: list[int],
        greedy: dict[int, tuple[str, float]] | None,
    ) -> Rollouts:
        texts = [self._decode(completion) for completion in completions]
        problems = [self.problems[index] for index, _ in rows]
        rewards, tally = self.reward.grade(texts, problems)
        optional: dict[str, list[Any]] = {}
        if any(completion.logprobs is not None for completion in completions):
            optional["sampler_logprobs"] = [
                [float("nan")] * len(completion.tokens) if completion.logprobs is None else completion.logprobs
                for completion in completions
            ]
        if self.sampler.own_seeds:
            optional["sampler_seed"] = seeds
            optional["token_source"] = [completion.token_source for completion in completions]
        if greedy is not None:
            optional["greedy_text"] = [greedy[index][0] for index, _ in rows]
            optional["greedy_reward"] = [float(greedy[index][1]) for index, _ in rows]
        return Rollouts.from_sequences(
            prompt_tokens=[self.prompt_tokens[index] for index, _ in rows],
            completion_tokens=[completion.tokens for completion in completions],
            rewards=rewards,
            prompt_ids=[problem.prompt_id for problem in problems],
            sample_ids=[number for _, number in rows],
            finish_reason=[completion.finish_reason for completion in completions],
            prompt_text=[problem.prompt for problem in problems],
            completion_text=texts,
            metadata=self.metadata | {"grading": tally},
            **optional,
        )


def refuse_long_prompts(
    policy: Policy, problems: Sequence[Problem], prompt_tokens: Sequence[list[int]], max_new_tokens: int
) -> None:
    """Refuse prompts that leave no room for ``max_new_tokens`` in the model's context, naming the longest.

    Raises:
        ValueError: likewise.
    """
    context = getattr(policy.model.config, "max_position_embeddings", None)
    lengths = [len(tokens) for tokens in prompt_tokens]
    longest = max(lengths)
    if context is None or longest + max_new_tokens <= context:
        return
    too_long = sum(length + max_new_tokens > context for length in lengths)
    name = problems[lengths.index(longest)].prompt_id
    least = f"lower it to {context - longest} or less, or drop" if longest < context else "drop"
    raise ValueError(
        f"max_new_tokens is {max_new_tokens}, and with the {longest} tokens of prompt {name!r} that exceeds the "
        f"model's context of {context}: {least} the {too_long} longest prompt(s)"
    )
