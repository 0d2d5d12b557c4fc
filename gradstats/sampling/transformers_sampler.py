"""Sampling with ``generate`` of transformers: every parameter is explicit, and log-probabilities are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gradstats.policy.model import CausalModel
from gradstats.policy.policy import Policy
from gradstats.policy.threads import suitable_threads
from gradstats.sampling.sampler import Completion
from gradstats.sampling.settings import SamplerSettings
from gradstats.sampling.stop_tokens import stop_token_ids


@dataclass(frozen=True)
class TransformersSampler:
    """Batches of left-padded prompts through the policy's ``generate``, one seed per batch."""

    policy: Policy
    own_seeds = False

    def describe(self) -> dict[str, object]:
        """The engine's name."""
        return {"engine": "transformers"}

    def draw(
        self,
        prompts: Sequence[list[int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> list[Completion]:
        """Draw one completion for each prompt, see :class:`gradstats.sampling.sampler.Sampler`."""
        with suitable_threads(self.policy):
            return generate(self.policy, list(prompts), settings, int(seeds[0]), on_tokens)


def generate(
    policy: Policy,
    prompts: list[list[int]],
    settings: SamplerSettings,
    seed: int,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> list[Completion]:
    """Draw one completion for each prompt, as one batch.

    Args:
        policy: the policy; the temperature is that of the settings, not of the policy.
        prompts: token ids, one list per completion (repeat a prompt to draw several completions from it).
        settings: the sampler's parameters.
        seed: seed of torch's generators; the caller's generator states are restored.
        on_tokens: called after each step with the number of tokens drawn in it.

    Returns:
        Completions in the order of ``prompts``.
    """
    longest = max(map(len, prompts))
    stop_tokens = stop_token_ids(policy)
    pad = _pad_token(policy, stop_tokens)
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=policy.device)
    attention = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=policy.device
    )
    recorder = _Recorder(stop_tokens, on_tokens)
    devices = [policy.device] if policy.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        _bare_generation_config(policy.model, stop_tokens, pad),
        torch.no_grad(),
    ):
        torch.manual_seed(seed)
        out = policy.model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # decorated in transformers
            input_ids=ids,
            attention_mask=attention,
            generation_config=_plain_sampling(settings, stop_tokens, pad),
            logits_processor=_processors(settings, recorder),
        )
    drawn = out[:, longest:].cpu()
    recorder.finish(drawn[:, -1])
    logprobs = torch.stack(recorder.logprobs, dim=1).cpu().numpy()
    return [_cut(drawn[row].tolist(), logprobs[row], stop_tokens) for row in range(len(prompts))]


def _pad_token(policy: Policy, stop_tokens: list[int]) -> int:
    pad = getattr(policy.tokenizer, "pad_token_id", None)
    if pad is not None:
        return int(pad)
    return stop_tokens[0] if stop_tokens else 0


def _plain_sampling(settings: SamplerSettings, stop_tokens: list[int], pad: int) -> GenerationConfig:
    """Plain ancestral sampling: :func:`_processors` makes all changes to the distribution."""
    return GenerationConfig(
        do_sample=True,
        num_beams=1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=stop_tokens or None,
        pad_token_id=pad,
    )


def _processors(settings: SamplerSettings, recorder: LogitsProcessor) -> LogitsProcessorList:
    """The warpers of transformers in their usual order, followed by the recorder.

    They are passed to ``generate`` explicitly because its built-in ones run after any custom processor, so that the
    recorder would not see their effect.
    """
    processors = LogitsProcessorList()
    if settings.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        processors.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        processors.append(MinPLogitsWarper(settings.min_p))
    processors.append(recorder)
    return processors


class _Recorder(LogitsProcessor):
    """Keeps the log-probability of each drawn token, holding one step's distribution at a time."""

    def __init__(self, stop_tokens: list[int], on_tokens: Callable[[int], None]) -> None:
        self.logprobs: list[torch.Tensor] = []
        self._stop_tokens = stop_tokens
        self._on_tokens = on_tokens
        self._distribution: torch.Tensor | None = None
        self._running: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._distribution is not None:
            self.finish(input_ids[:, -1])
        self._distribution = scores.float().log_softmax(dim=-1)
        return scores

    def finish(self, tokens: torch.Tensor) -> None:
        """Record the tokens that were drawn from the current distribution."""
        assert self._distribution is not None
        tokens = tokens.to(self._distribution.device)
        self.logprobs.append(self._distribution.gather(1, tokens[:, None])[:, 0])
        if self._running is None:
            self._running = torch.ones_like(tokens, dtype=torch.bool)
        self._on_tokens(int(self._running.sum()))
        for stop in self._stop_tokens:
            self._running &= tokens != stop


@contextmanager
def _bare_generation_config(model: CausalModel, stop_tokens: list[int], pad: int) -> Iterator[None]:
    """Hide the model's generation_config, from which ``generate`` silently fills every unset option."""
    kept = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=stop_tokens or None, pad_token_id=pad)
    try:
        yield
    finally:
        model.generation_config = kept


def _cut(tokens: list[int], logprobs: np.ndarray, stop_tokens: list[int]) -> Completion:
    for position, token in enumerate(tokens):
        if token in stop_tokens:
            end = position + 1
            return Completion(tokens[:end], logprobs[:end].tolist(), "stop")
    return Completion(tokens, logprobs.tolist(), "length")
