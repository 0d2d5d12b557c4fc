r"""The one differentiated function: :math:`\sum_t w_t \log\pi(y_t \mid x, y_{<t})`, and what comes free with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradstats.rollouts import Rollouts


class TokenStatistics(NamedTuple):
    """What one forward pass tells about every position, at no further cost.

    Attributes:
        logprobs: log-probability of the token that was drawn.
        entropy: entropy of the distribution it was scored under, in nats.
        sum_pi_squared: sum of the squared probabilities of that distribution.
        hidden_sq_norms: squared norm of the hidden state that enters the output embedding.
    """

    logprobs: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor
    hidden_sq_norms: Tensor


@dataclass(frozen=True)
class Chunk:
    """Sequences that go through the model together, right-padded.

    Attributes:
        rows: (batch,), their rows in the rollouts.
        input_ids: (batch, time).
        weights: (batch, kept), token weights of the last ``kept`` positions; zero on the prompt and on padding.
        starts: (batch,), where among the kept positions the completion's first token stands.
        lengths: (batch,), number of completion tokens, masked ones included.
    """

    rows: np.ndarray
    input_ids: Int[Tensor, "batch time"]
    weights: Float[Tensor, "batch kept"]
    starts: list[int]
    lengths: list[int]

    @property
    def n_tokens(self) -> int:
        """Tokens that go through the model, padding included."""
        return self.input_ids.numel()

    def ragged(self, values: Float[Tensor, "batch kept"]) -> list[np.ndarray]:
        """Per-position values of the completions alone, one array per sequence."""
        table = values.detach().double().cpu().numpy()
        spans = zip(self.starts, self.lengths, strict=True)
        return [table[row, start : start + length] for row, (start, length) in enumerate(spans)]


def make_chunk(rollouts: Rollouts, rows: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype) -> Chunk:
    """Encode rows of the rollouts as one right-padded chunk.

    Padding stands to the right and is masked in the objective only: under a causal mask no real token sees it, and
    passing no attention mask keeps the function traceable by torch.func.
    """
    rows = np.asarray(rows)
    frame = rollouts.frame
    prompts = [list(frame["prompt_tokens"].iloc[row]) for row in rows]
    completions = [list(frame["completion_tokens"].iloc[row]) for row in rows]
    all_masks = frame.get("completion_mask")
    time = max(len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True))
    first = min(map(len, prompts))
    ids = torch.zeros(len(rows), time, dtype=torch.long)
    weights = torch.zeros(len(rows), time - first, dtype=dtype)
    for place, (row, prompt, completion) in enumerate(zip(rows, prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        ids[place, :end] = torch.tensor(prompt + completion)
        mask = [True] * len(completion) if all_masks is None else list(all_masks.iloc[row])
        weights[place, len(prompt) - first : end - first] = torch.tensor(mask, dtype=dtype)
    starts = [len(prompt) - first for prompt in prompts]
    return Chunk(rows, ids.to(device), weights.to(device), starts, [len(completion) for completion in completions])


class Objective:
    r"""The objective of a model as a function of one sequence; open it as a context before calling it.

    Calling it with ``call`` (the model, or the model at given parameters), ``input_ids`` (time,) and ``weights``
    (kept,) gives :math:`\sum_t w_t \log\pi(y_t)` over the last ``kept`` tokens, and their
    :class:`TokenStatistics`.

    Args:
        model: a causal language model of transformers.
        temperature: logits are divided by it.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        self._temperature = temperature
        self._head = model.get_output_embeddings()
        self._trims_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._hidden: Tensor | None = None

    def __enter__(self) -> Objective:
        def keep(_module: Any, inputs: tuple[Tensor, ...]) -> None:
            self._hidden = inputs[0]

        self._handle = self._head.register_forward_pre_hook(keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self._hidden = None

    def __call__(self, call: Callable[..., Any], input_ids: Tensor, weights: Tensor) -> tuple[Tensor, TokenStatistics]:
        """The weighted sum of log-probabilities of one sequence; arguments as in the class."""
        kept = weights.shape[0]
        # Logits are only needed where a completion token is predicted: one position before it.
        options = {"logits_to_keep": kept + 1} if self._trims_logits else {}
        logits = call(input_ids[None], use_cache=False, **options).logits[0, -kept - 1 : -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self._temperature
        normaliser = logits.logsumexp(dim=-1)
        logprobs = logits.gather(1, input_ids[-kept:, None])[:, 0] - normaliser
        assert self._hidden is not None
        hidden = self._hidden[0, -kept - 1 : -1].detach()
        statistics = _statistics(logits.detach(), normaliser.detach(), logprobs.detach(), hidden)
        return (weights * logprobs).sum(), statistics


def _statistics(logits: Tensor, normaliser: Tensor, logprobs: Tensor, hidden: Tensor) -> TokenStatistics:
    log_pi = logits - normaliser[:, None]
    pi = log_pi.exp()
    return TokenStatistics(
        logprobs=logprobs,
        entropy=-(pi * log_pi).sum(dim=-1),
        sum_pi_squared=pi.square().sum(dim=-1),
        hidden_sq_norms=hidden.to(logprobs.dtype).square().sum(dim=-1),
    )
