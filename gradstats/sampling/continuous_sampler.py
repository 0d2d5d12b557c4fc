"""Sampling with continuous batching in transformers: a new prompt starts as soon as a completion ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import GenerationOutput

from gradstats.policy.policy import Policy
from gradstats.policy.threads import suitable_threads
from gradstats.sampling.sampler import Completion
from gradstats.sampling.settings import SamplerSettings
from gradstats.sampling.stop_tokens import stop_token_ids

# By default the cache takes most of the free memory, which on a CPU is shared with other processes, and the attention
# masks of 8192 tokens at once take more than a small share of it.
_ON_CPU = {"max_memory_percent": 0.1, "max_batch_tokens": 512}


@dataclass(frozen=True)
class ContinuousSampler:
    """The policy's ``generate_batch``, one seed per batch; designed for GPUs, slow to start on a CPU.

    Attributes:
        policy: the policy.
        options: fields of ``ContinuousBatchingConfig``.
    """

    policy: Policy
    options: Mapping[str, object] = field(default_factory=dict)
    own_seeds = False

    def describe(self) -> dict[str, object]:
        """Return the engine's name and options."""
        return {"engine": "transformers, continuous batching", **self.options}

    def draw(
        self,
        prompts: Sequence[list[int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> list[Completion]:
        """Draw one completion for each prompt, see :class:`gradstats.sampling.sampler.Sampler`.

        Raises:
            ValueError: for a repetition penalty, which continuous batching does not support.
            RuntimeError: when a request fails.
        """
        if settings.repetition_penalty != 1.0:
            raise ValueError(
                f"repetition_penalty is {settings.repetition_penalty}: continuous batching does not support "
                "it; leave it at 1, "
                'or use sampler "transformers"'
            )
        stop_tokens = stop_token_ids(self.policy)
        options: dict[str, object] = {"return_logprobs": True, "drop_unsupported_processors": False}
        if self.policy.device.type == "cpu":
            options |= _ON_CPU
        options |= {"seed": int(seeds[0]), **self.options}
        config = ContinuousBatchingConfig(**options)  # pyright: ignore[reportArgumentType]  # it checks them
        generation = GenerationConfig(
            do_sample=True,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p or None,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=stop_tokens or None,
            pad_token_id=stop_tokens[0] if stop_tokens else 0,
        )
        # generate_batch seeds the global generator, whose state belongs to the caller.
        devices = [self.policy.device] if self.policy.device.type == "cuda" else []
        with suitable_threads(self.policy), torch.random.fork_rng(devices=devices):
            answers = self.policy.model.generate_batch(
                inputs=list(prompts), generation_config=generation, continuous_batching_config=config
            )
        # Requests are numbered in the order of the prompts and returned in the order in which they ended.
        ordered = [answers[name] for name in sorted(answers, key=_number)]
        completions = [self._completion(answer, stop_tokens) for answer in ordered]
        if len(completions) != len(prompts):
            raise RuntimeError(
                f'continuous batching answered {len(completions)} of {len(prompts)} prompts: use sampler "transformers"'
            )
        on_tokens(sum(len(completion.tokens) for completion in completions))
        return completions

    def _completion(self, answer: GenerationOutput, stop_tokens: list[int]) -> Completion:
        if answer.error is not None:
            raise RuntimeError(f'continuous batching failed ({answer.error}): use sampler "transformers"')
        tokens = list(answer.generated_tokens)
        reason = "stop" if tokens[-1] in stop_tokens else "length"
        return Completion(tokens, list(answer.logprobs), reason)


def _number(request: str) -> int:
    return int(request.rsplit("_", 1)[-1])
