"""Sampling with transformers: batch by batch with a cache that grows as needed, or with continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import GenerationOutput

from gradstats.policy.memory import in_parts_that_fit
from gradstats.policy.model import CausalModel
from gradstats.policy.policy import Policy, suitable_threads
from gradstats.sampling.sampler import Completion, SamplerSettings, stop_token_ids

ROOM = 64  # tokens for which a new buffer has room
_LARGE, _BLOCK = 4096, 128  # a vocabulary in which tokens are drawn by blocks, and their size


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, as views of the filled part of two buffers.

    ``DynamicLayer`` of transformers concatenates, so that each token copies the keys and values of all earlier ones:
    for a small model, this takes most of the sampling time. The buffers here are replaced every 64 tokens. Rows are
    taken out of the cache as from a ``DynamicLayer``.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Create empty buffers of the states' type."""
        super().lazy_initialization(key_states, value_states)
        self._buffers = [key_states[..., :0, :], value_states[..., :0, :]]
        self.keys, self.values = self._buffers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of further tokens and return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._appended(0, self.keys, key_states)
        self.values = self._appended(1, self.values, value_states)
        return self.keys, self.values

    def _appended(self, which: int, held: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        before, after = held.shape[-2], held.shape[-2] + states.shape[-2]
        buffer = self._buffers[which]
        # Where rows were taken out, `held` is a copy that does not lie in the buffer.
        if held.data_ptr() != buffer.data_ptr() or held.shape[0] != buffer.shape[0] or after > buffer.shape[-2]:
            buffer = states.new_empty(*states.shape[:-2], after + ROOM, states.shape[-1])
            buffer[..., :before, :] = held
            self._buffers[which] = buffer
        buffer[..., before:after, :] = states
        return buffer[..., :after, :]


@dataclass(frozen=True)
class TransformersSampler:
    """Batches of left-padded prompts through the policy's ``generate``, one seed per batch."""

    policy: Policy
    own_seeds = False
    implements = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def describe(self) -> dict[str, object]:
        """Return the engine's name."""
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
    """Draw one completion for each prompt, as one batch; in halves of it where memory runs out."""
    stop_tokens = stop_token_ids(policy)
    pad = _pad_token(policy, stop_tokens)
    devices = [policy.device] if policy.device.type == "cuda" else []

    def draw(rows: np.ndarray) -> list[Completion]:
        some = [prompts[row] for row in rows]
        # A part of the batch has its own seed: prompts that occur in two of them would get the same completions.
        whole = len(some) == len(prompts)
        own = seed if whole else int(np.random.SeedSequence([seed % 2**63, *rows[[0, -1]]]).generate_state(1)[0])
        with (
            torch.random.fork_rng(devices=devices),
            _bare_generation_config(policy.model, stop_tokens, pad),
            torch.no_grad(),
        ):
            torch.manual_seed(own)
            return _Batch(policy, some, stop_tokens, pad).draw(settings, on_tokens)

    parts = in_parts_that_fit(np.arange(len(prompts)), draw, policy.device, "completions", "a smaller batch_size")
    return [completion for _, drawn in parts for completion in drawn]


class _Batch:
    """Completions that are drawn together; those that have ended leave the batch.

    Lengths vary widely, and every row costs the same in every step, whether or not it has ended. Therefore ``generate``
    stops whenever half of its rows have ended, and resumes with the others and their part of the key-value cache.
    """

    def __init__(self, policy: Policy, prompts: list[list[int]], stop_tokens: list[int], pad: int) -> None:
        self._model = policy.model
        self._stop_tokens, self._pad = stop_tokens, pad
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        self._ids = torch.tensor(
            [[pad] * n + prompt for n, prompt in zip(padding, prompts, strict=True)], device=policy.device
        )
        self._attention = torch.tensor([[0] * n + [1] * (longest - n) for n in padding], device=policy.device)
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self._logprobs: list[list[float]] = [[] for _ in prompts]
        self._cache = _divisible_cache(policy.model)

    def draw(self, settings: SamplerSettings, on_tokens: Callable[[int], None]) -> list[Completion]:
        """Draw until every completion has ended or is as long as allowed."""
        rows = list(range(len(self._tokens)))
        left = settings.max_new_tokens
        while rows and left:
            running, drawn = self._draw_some(rows, settings.capped(left), on_tokens)
            left -= drawn
            rows = [row for row, runs in zip(rows, running.tolist(), strict=True) if runs]
            if rows and left:
                self._keep(running.nonzero()[:, 0])
        return [
            Completion(tokens, logprobs, "stop" if tokens and tokens[-1] in self._stop_tokens else "length")
            for tokens, logprobs in zip(self._tokens, self._logprobs, strict=True)
        ]

    def _draw_some(
        self, rows: list[int], settings: SamplerSettings, on_tokens: Callable[[int], None]
    ) -> tuple[torch.Tensor, int]:
        """Draw until half of the rows have ended; return which are running and how many tokens each received."""
        draws = _Draws(self._stop_tokens, on_tokens)
        before = self._ids.shape[1]
        stages = {"past_key_values": self._cache, "stopping_criteria": [draws.halved]}
        self._ids = self._model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # decorated in transformers
            input_ids=self._ids,
            attention_mask=self._attention,
            generation_config=_greedy(settings, self._stop_tokens, self._pad),
            logits_processor=_processors(settings, draws),
            **(stages if self._cache is not None else {}),
        )
        drawn = self._ids[:, before:].cpu()
        logprobs = torch.stack(draws.logprobs, dim=1).cpu()
        for row, tokens, values in zip(rows, drawn.tolist(), logprobs.tolist(), strict=True):
            ends = [at for at, token in enumerate(tokens) if token in self._stop_tokens]
            end = ends[0] + 1 if ends else len(tokens)
            self._tokens[row] += tokens[:end]
            self._logprobs[row] += values[:end]
        return draws.running, drawn.shape[1]

    def _keep(self, rows: torch.Tensor) -> None:
        """Keep only some rows of the batch."""
        assert self._cache is not None
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._ids = self._ids[rows]
        more = self._ids.shape[1] - self._attention.shape[1]
        self._attention = torch.nn.functional.pad(self._attention[rows], (0, more), value=1)


def _divisible_cache(model: CausalModel) -> DynamicCache | None:
    """Create a key-value cache from which rows can be selected; None for models that keep another kind of state."""
    if not getattr(model, "_supports_default_dynamic_cache", lambda: False)():
        return None
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if not all(isinstance(layer, DynamicLayer) for layer in cache.layers):
        return None
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _pad_token(policy: Policy, stop_tokens: list[int]) -> int:
    pad = getattr(policy.tokenizer, "pad_token_id", None)
    if pad is not None:
        return int(pad)
    return stop_tokens[0] if stop_tokens else 0


def _greedy(settings: SamplerSettings, stop_tokens: list[int], pad: int) -> GenerationConfig:
    """Configure ``generate`` to take the likeliest token: what is drawn from is up to :func:`_processors`."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=stop_tokens or None,
        pad_token_id=pad,
    )


def _processors(settings: SamplerSettings, draws: LogitsProcessor) -> LogitsProcessorList:
    """List the warpers of transformers in their usual order, followed by what draws.

    They are passed to ``generate`` explicitly because its built-in ones run after any custom processor.
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
    processors.append(draws)
    return processors


class _Draws(LogitsProcessor):
    """Draws each token and keeps its log-probability; what it returns leaves ``generate`` no choice but that token."""

    def __init__(self, stop_tokens: list[int], on_tokens: Callable[[int], None]) -> None:
        self.logprobs: list[torch.Tensor] = []
        self.running = torch.tensor(())  # which rows have not ended
        self._stop_tokens = stop_tokens
        self._on_tokens = on_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        tokens = draw_tokens(scores.softmax(dim=-1))
        self.logprobs.append(scores.log_softmax(dim=-1).gather(1, tokens)[:, 0])
        if len(self.logprobs) == 1:
            self.running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
        self._on_tokens(int(self.running.sum()))
        for stop in self._stop_tokens:
            self.running &= tokens[:, 0] != stop
        return scores.scatter_(1, tokens, torch.inf)

    def halved(self, input_ids: torch.Tensor, _scores: object, **_options: object) -> torch.Tensor:
        """Stop when at most half of the rows are running."""
        half = int(self.running.sum()) * 2 <= len(input_ids)
        return torch.full((len(input_ids),), half, device=input_ids.device)


def draw_tokens(probabilities: torch.Tensor) -> torch.Tensor:
    r"""Draw one token for each row of probabilities, (rows, vocabulary) → (rows, 1).

    ``torch.multinomial`` draws an exponential number for every token: on a CPU, with a large vocabulary, this takes as
    long as the policy itself. There one uniform number finds its block of tokens among their sums, then its token.
    """
    n_tokens = probabilities.shape[1]
    if probabilities.device.type != "cpu" or n_tokens < _LARGE:
        return torch.multinomial(probabilities, num_samples=1)
    if n_tokens % _BLOCK:
        probabilities = torch.nn.functional.pad(probabilities, (0, -n_tokens % _BLOCK))
    blocks = probabilities.unflatten(1, (-1, _BLOCK))
    sums = blocks.sum(dim=-1).double()
    if not sums.sum().isfinite():
        raise RuntimeError("probabilities are not finite")
    block, rest = _inverted(sums, torch.rand(len(sums), 1, dtype=torch.float64) * sums.sum(dim=-1, keepdim=True))
    token, _ = _inverted(blocks.take_along_dim(block[..., None], dim=1)[:, 0].double(), rest)
    return block * _BLOCK + token


def _inverted(weights: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entry of each row in which the running sum passes ``at``, and how far ``at`` lies within it."""
    ends = weights.cumsum(dim=-1)
    # Rounding may put `at` on the end of the last entry, which is not passed.
    at = at.minimum(torch.nextafter(ends[:, -1:], torch.zeros_like(at)))
    entry = torch.searchsorted(ends, at, right=True)
    return entry, at - (ends - weights).gather(1, entry)


@contextmanager
def _bare_generation_config(model: CausalModel, stop_tokens: list[int], pad: int) -> Iterator[None]:
    """Hide the model's generation_config, from which ``generate`` silently fills every unset option."""
    kept = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=stop_tokens or None, pad_token_id=pad)
    try:
        yield
    finally:
        model.generation_config = kept


# By default the cache takes most of the free memory, which on a CPU is shared with other processes, and the attention
# masks of 8192 tokens at once take more than a small share of it.
_ON_CPU = {"max_memory_percent": 0.1, "max_batch_tokens": 512}


@dataclass(frozen=True)
class ContinuousSampler:
    """The policy's ``generate_batch``, one seed per batch; designed for GPUs, slow to start on a CPU."""

    policy: Policy
    options: Mapping[str, object] = field(default_factory=dict)  # fields of ContinuousBatchingConfig
    own_seeds = False
    implements = ("temperature", "top_p", "top_k", "min_p")

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
        """Draw one completion for each prompt, see :class:`gradstats.sampling.sampler.Sampler`."""
        settings.refuse_unknown_to(self)
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
