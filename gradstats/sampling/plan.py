"""The plan of sampling: prompts → batches with seeds, the engine that draws them, and answers kept after a failure."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradstats.config.sections import SamplingSection
from gradstats.policy.model import refuse_weights_that_are_not_finite
from gradstats.policy.policy import Policy
from gradstats.prompts.problem import Problem
from gradstats.rewards.grading import Grader, ungraded_sentence
from gradstats.rewards.registry import Reward
from gradstats.rollouts.table import Rollouts, retokenised_sentence
from gradstats.sampling.sampler import Closable, Completion, KeepsAnswers, Sampler, SamplerSettings, stop_token_ids
from gradstats.sampling.server_sampler import ServerSampler
from gradstats.sampling.transformers_sampler import ContinuousSampler, TransformersSampler
from gradstats.sampling.vllm_sampler import VllmSampler
from gradstats.system.environment import version_of
from gradstats.system.files import digest, read_json, write_json

#: Name → the engine; ``gradstats.sample`` takes these as ``sampler``.
SAMPLERS: dict[str, Any] = {
    "transformers": TransformersSampler,
    "continuous": ContinuousSampler,
    "vllm": VllmSampler,
    "openai": ServerSampler,
}


def open_sampler(policy: Policy, section: SamplingSection) -> Sampler:
    """Return the sampler that a section names, with its options."""
    name, base_url, options = section.sampler, section.base_url, dict(section.sampler_options)
    if base_url is not None and name != "openai":
        raise ValueError(f'base_url is {base_url!r}, but sampler is {name!r}: a server takes sampler "openai"')
    if name in ("transformers", "continuous"):  # the others draw from weights of their own
        refuse_weights_that_are_not_finite(policy.model, policy.name)
    if base_url not in (None, options.get("base_url", base_url)):
        raise ValueError(
            f"base_url is {base_url!r}, and that of sampler_options {options['base_url']!r}: give one address"
        )
    arguments: dict[str, Any] = {"options": options}
    if name == "openai":
        arguments = {"base_url": base_url or "", **options}
    elif name == "transformers":
        arguments = options
    try:
        return SAMPLERS[name](policy, **arguments)
    except TypeError as error:
        named = ", ".join(options)  # without values, one of which may be a key
        raise ValueError(f"sampler_options ({named}) do not suit the sampler {name!r}: {error}") from error


#: Beyond what a run samples; the list of batches of a mistyped group_size would fill the memory.
_MOST_COMPLETIONS = 10_000_000


def warn_of_rollouts(rollouts: Rollouts) -> None:
    """Warn of completions that a reward could not score, and of those whose token ids may not be the sampled ones."""
    for sentence in (ungraded_sentence(rollouts.metadata.get("grading")), retokenised_sentence(rollouts)):
        if sentence:
            warnings.warn(sentence, UserWarning, stacklevel=3)


@dataclass(frozen=True)
class SamplingPlan:
    """Which completions are drawn together, fixed before the first is drawn.

    Batches hold prompts of similar length (whose completions tend to be of similar length too), and each has its own
    seed: any batch can be drawn alone, in any order, with the same result.
    """

    policy: Policy
    problems: Sequence[Problem]
    prompt_tokens: list[list[int]]
    section: SamplingSection
    settings: SamplerSettings  # those of the section that fit this policy
    reward: Grader
    rows: list[list[tuple[int, int]]]
    metadata: dict[str, Any]
    sampler: Sampler

    @property
    def in_step(self) -> bool:
        """Whether batches pass through the policy's own weights, of which each rank of a group may hold a part."""
        return isinstance(self.sampler, TransformersSampler)

    @classmethod
    def make(
        cls,
        policy: Policy,
        problems: Sequence[Problem],
        section: SamplingSection,
        *,
        sampler: Sampler | None = None,
        reward: Reward | None = None,
    ) -> SamplingPlan:
        """Encode the prompts and form the batches."""
        if not problems:
            raise ValueError("problems is empty: there is nothing to sample")
        if len(problems) * section.group_size > _MOST_COMPLETIONS:
            raise ValueError(
                f"group_size is {section.group_size}, which makes {len(problems) * section.group_size} completions of "
                f"{len(problems)} prompts: a run has at most {_MOST_COMPLETIONS}, so lower group_size or the number of "
                "prompts"
            )
        if len({problem.prompt_id for problem in problems}) < len(problems):
            raise ValueError("problems repeat a prompt_id: names must be unique, since groups are formed by them")
        settings = SamplerSettings.of(section, policy.temperature)
        prompt_options = {"system_prompt": section.system_prompt, "template_options": section.template_options}
        tokens = [policy.encode_prompt(problem.prompt, **prompt_options) for problem in problems]
        settings = settings.capped(_fitting_cap(policy, tokens, settings.max_new_tokens))
        _refuse_long_prompts(policy, problems, tokens, settings.max_new_tokens)
        if sampler is None:
            sampler = open_sampler(policy, section)
        settings.refuse_unknown_to(sampler)
        group_size, batch_size = section.group_size, section.batch_size
        if section.greedy:  # whole groups
            batch_size = max(batch_size // group_size, 1) * group_size
        by_length = sorted(range(len(problems)), key=lambda index: (len(tokens[index]), index))
        pairs = [(index, number) for index in by_length for number in range(group_size)]
        rows = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
        grader = Grader.make(section.reward if reward is None else reward, problems)
        metadata = {
            "policy": policy.describe(),
            "sampler": {**sampler.describe(), **settings.model_dump()},
            "group_size": group_size,
            "batch_size": batch_size,
            "seed": section.seed,
            "greedy": section.greedy,
            "reward": grader.describe(),
            **prompt_options,
            "stop_token_ids": stop_token_ids(policy),
            "generation_config_not_followed": settings.overridden(policy.model.generation_config),
            "versions": {name: version_of(name) for name in ("gradstats", "torch", "transformers")},
        }
        return cls(policy, problems, tokens, section, settings, grader, rows, metadata, sampler)

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.rows)

    @property
    def n_completions(self) -> int:
        """Total number of completions."""
        return sum(map(len, self.rows))

    def close(self) -> None:
        """Let an engine of its own, as vLLM's, give the device's memory back; the next draw starts it again."""
        if isinstance(self.sampler, Closable):
            self.sampler.close()

    def made_with(self) -> dict[str, Any]:
        """Return everything that decides what is drawn."""
        names = [problem.prompt_id for problem in self.problems]
        answers = [problem.answer for problem in self.problems]
        return self.metadata | {"problems": digest([names, self.prompt_tokens, answers])}

    def warn_overridden(self) -> None:
        """Warn of what the model's generation_config would have changed."""
        ignored = self.metadata["generation_config_not_followed"]
        if ignored:
            listed = ", ".join(f"{key}={value}" for key, value in ignored.items())
            warnings.warn(
                f"the model's generation_config specifies {listed}; it is not followed: pass these settings to "
                "sample() to draw with them",
                UserWarning,
                stacklevel=3,
            )

    def draw(self, batch: int, on_tokens: Callable[[int], None] = lambda count: None) -> Rollouts:
        """Draw and score one batch."""
        rows = self.rows[batch]
        # The first seed does not depend on how many are drawn: an engine with one seed per batch uses it.
        seeds = np.random.SeedSequence([self.section.seed, batch]).generate_state(len(rows)).tolist()
        prompts = [self.prompt_tokens[index] for index, _ in rows]
        completions = self.sampler.draw(prompts, self.settings, seeds, on_tokens)
        greedy = self._draw_greedy(rows, seeds, on_tokens) if self.section.greedy else None
        return self._table(rows, completions, seeds, greedy)

    def _draw_greedy(
        self, rows: list[tuple[int, int]], seeds: list[int], on_tokens: Callable[[int], None]
    ) -> dict[int, tuple[str, float]]:
        """Return the text and reward of the greedy completion of each problem in a batch."""
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
        rewards, grading = self.reward.grade(texts, problems)
        optional: dict[str, list[Any]] = {}
        if any(completion.logprobs is not None for completion in completions):
            optional["sampler_logprobs"] = [
                [float("nan")] * len(completion.tokens) if completion.logprobs is None else completion.logprobs
                for completion in completions
            ]
        if self.sampler.own_seeds:
            optional["sampler_seed"] = [
                seed if completion.seed is None else completion.seed
                for seed, completion in zip(seeds, completions, strict=True)
            ]
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
            metadata=self.metadata | {"grading": grading},
            **optional,
        )


def _fitting_cap(policy: Policy, prompt_tokens: Sequence[list[int]], max_new_tokens: int) -> int:
    """Lower the default cap, given or not, to what the context of the model leaves; any other stays."""
    left = (_context(policy) or max_new_tokens) - max(map(len, prompt_tokens))
    if max_new_tokens != SamplingSection.model_fields["max_new_tokens"].default or not 0 < left < max_new_tokens:
        return max_new_tokens
    warnings.warn(
        f"max_new_tokens={max_new_tokens}, the default, exceeds the model's context and is lowered to {left}",
        UserWarning,
        stacklevel=3,
    )
    return left


def _context(policy: Policy) -> int | None:
    return getattr(policy.model.config, "max_position_embeddings", None)


def _refuse_long_prompts(
    policy: Policy, problems: Sequence[Problem], prompt_tokens: Sequence[list[int]], max_new_tokens: int
) -> None:
    """Refuse prompts that leave no room for ``max_new_tokens`` in the model's context, naming the longest."""
    context = _context(policy)
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


Drawn = TypeVar("Drawn")


def draw_keeping_answers(sampler: Sampler, path: Path, draw: Callable[[], Drawn]) -> Drawn:
    """Draw a batch with the answers in a file, which is written when that fails and removed when it succeeds."""
    kept = sampler.kept if isinstance(sampler, KeepsAnswers) else {}
    kept.clear()
    kept.update(read_answers(path))
    try:
        drawn = draw()
    except BaseException:
        if kept:
            write_json(path, {"answers": {key: asdict(completion) for key, completion in kept.items()}})
        raise
    finally:
        kept.clear()
    path.unlink(missing_ok=True)
    return drawn


def answers_path(folder: Path, batch: int) -> Path:
    """Return where the answers of a batch are kept."""
    return folder / f".answers-{batch:05d}.json"


def read_answers(path: Path) -> dict[str, Completion]:
    """Return the answers that a failed batch left, by request; none where there is no file."""
    if not path.exists():
        return {}
    try:
        return {key: _completion(entry) for key, entry in read_json(path)["answers"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not contain server responses: remove it; they will be requested again"
        ) from error


def _completion(entry: dict[str, object]) -> Completion:
    """Restore a completion; JSON has no NaN."""
    logprobs = entry["logprobs"]
    if isinstance(logprobs, list):
        entry = entry | {"logprobs": [math.nan if value is None else value for value in logprobs]}
    return Completion(**entry)  # pyright: ignore[reportArgumentType]
