r"""The differentiated function :math:`\sum_t w_t \log\pi(y_t \mid x, y_{<t})`, and chunks of sequences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.utils import ModelOutput

from gradstats.config.options import MOST_MEMORY_GIB, TOKEN_BUDGET
from gradstats.gradients.attention import forget_lengths, length_classes, measuring_attention
from gradstats.gradients.head import HeadLogprobs, HeadMap, HeadReducer, head_map, replaced_forward, sliced_head
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError
from gradstats.measurement.disk_size import GIB
from gradstats.policy.memory import is_accelerator, planned_memory_gib
from gradstats.policy.model import CausalModel, n_logits, output_embedding
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts

#: Largest share of a chunk's tokens that may be padding.
MOST_PADDING = 0.1

# Copies of the logits that a backward pass of the objective and its statistics holds at its peak.
_LOGIT_COPIES = 6


def plan_chunks(
    rollouts: Rollouts,
    policy: Policy,
    selection: ParameterSelection,
    token_budget: int = TOKEN_BUDGET,
    memory_gib: float | None = None,
    gradients_held: int = 1,
    rows: np.ndarray | None = None,
    reference: Policy | None = None,
) -> list[np.ndarray]:
    """Return the rows of each chunk: sequences of similar length, within a budget of tokens and of memory.

    At most a tenth of a chunk's tokens is padding. Where a model's rotary factors depend on the padded length, the
    sequences of a chunk have the same factors as alone, see :mod:`gradstats.gradients.attention`.

    The plan depends on the rollouts, the model and the machine's total memory, not on the memory that is free: a
    measurement that is interrupted and resumed on it forms the same chunks and gives the same numbers. A GPU that other
    processes use counts as half of one, or less, see :func:`gradstats.policy.memory.planned_memory_gib`.
    """
    budget = _budget(policy, memory_gib)
    item = policy.dtype.itemsize
    most_sequences = len(rollouts)
    if gradients_held:
        most_sequences = max(1, gradients_that_fit(policy, selection, memory_gib) // gradients_held)
    most_tokens = token_budget
    if _holds_logits(policy, gradients_held):
        most_tokens = min(token_budget, int(budget // (_LOGIT_COPIES * max(item, 4) * n_logits(policy.model))))
    times = rollouts.times
    models = [policy.model] if reference is None else [policy.model, reference.model]
    classes = length_classes(models, times)
    chosen = np.arange(len(rollouts)) if rows is None else rows
    chunks: list[list[int]] = []
    real = 0
    for row in chosen[np.argsort(times[chosen], kind="stable")]:
        padded = (len(chunks[-1]) + 1) * times[row] if chunks else 0
        fits = bool(chunks) and len(chunks[-1]) < most_sequences and padded <= most_tokens
        together = fits and classes[row] == classes[chunks[-1][-1]]
        if together and padded - real - times[row] <= MOST_PADDING * padded:
            chunks[-1].append(int(row))
            real += times[row]
        else:
            chunks.append([int(row)])
            real = times[row]
    return [np.array(chunk) for chunk in chunks]


def _holds_logits(policy: Policy, gradients_held: int) -> bool:
    """Return whether the logits of a whole chunk are counted: everywhere but on an accelerator, in slices."""
    if gradients_held or not is_accelerator(policy.device):
        return True
    with measuring_attention(policy, batched=False):
        return head_map(policy.model) is None


def gradients_that_fit(policy: Policy, selection: ParameterSelection, memory_gib: float | None = None) -> int:
    """Return how many gradients of the whole selection fit into ``memory_gib``, as for :func:`plan_chunks`."""
    # Gradients of a chunk exist twice while they are reduced: plain, and with the signs of the sketch.
    one = 2 * policy.dtype.itemsize * selection.n_parameters
    return int(_budget(policy, memory_gib) // one)


def default_memory_gib(device: torch.device) -> float:
    """Return a quarter of the device's memory; on a CPU at most :data:`gradstats.config.options.MOST_MEMORY_GIB`."""
    quarter = planned_memory_gib(device) / 4
    return quarter if is_accelerator(device) else min(MOST_MEMORY_GIB, quarter)


def _budget(policy: Policy, memory_gib: float | None) -> float:
    """Return ``memory_gib``, or its default, in bytes."""
    return (default_memory_gib(policy.device) if memory_gib is None else memory_gib) * GIB


class TokenStatistics(NamedTuple):
    """Statistics of every position from the forward pass: of the sampled token, and of the whole distribution."""

    logprobs: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor
    hidden_sq_norms: Tensor


@dataclass(frozen=True)
class Chunk:
    """Sequences that pass through the model together, right-padded."""

    rows: np.ndarray  # (batch,), their rows in the rollouts
    input_ids: Int[Tensor, "batch time"]
    # (weightings, batch, kept), token weights of the last kept positions, zero on the prompt and on padding. The first
    # weighting is 1 on every counted token; the user gives further ones
    weights: Float[Tensor, "weightings batch kept"]
    starts: list[int]  # (batch,), the index of the completion's first token among the kept positions
    lengths: list[int]  # (batch,), number of completion tokens, masked ones included
    recompute: bool = False  # whether the layers run again in the backward pass, see gradients/recompute.py

    @property
    def n_tokens(self) -> int:
        """Number of tokens that pass through the model, padding included."""
        return self.input_ids.numel()

    @property
    def kept(self) -> int:
        """Number of last positions that contain all completions."""
        return self.weights.shape[2]

    @property
    def times(self) -> list[int]:
        """(batch,), number of tokens of each sequence, prompt included."""
        before = self.input_ids.shape[1] - self.kept
        return [before + start + length for start, length in zip(self.starts, self.lengths, strict=True)]

    def is_same(self, other: Chunk) -> bool:
        """Return whether an engine gives the same for another chunk, whose rows may be those of other rollouts."""
        numbers = [(one.starts, one.lengths, one.recompute) for one in (self, other)]
        tensors = (self.input_ids, other.input_ids), (self.weights, other.weights)
        return numbers[0] == numbers[1] and all(torch.equal(left, right) for left, right in tensors)

    def ragged(self, values: Float[Tensor, "batch kept"]) -> list[np.ndarray]:
        """Return the per-position values of the completions only, one array per sequence."""
        table = values.detach().double().cpu().numpy()
        spans = zip(self.starts, self.lengths, strict=True)
        return [table[row, start : start + length] for row, (start, length) in enumerate(spans)]


def make_chunk(
    rollouts: Rollouts,
    rows: Sequence[int] | np.ndarray,
    device: torch.device,
    dtype: torch.dtype,
    weightings: Sequence[Sequence[np.ndarray]] = (),
) -> Chunk:
    """Encode rows of the rollouts as one right-padded chunk.

    Padding is on the right and is masked in the objective only: under a causal mask no real token attends to it, and
    without an attention mask torch.func can trace the function.
    """
    rows = np.asarray(rows)
    frame = rollouts.frame
    prompts, completions = (list(map(list, frame[name].iloc[rows])) for name in ("prompt_tokens", "completion_tokens"))
    all_masks = frame.get("completion_mask")
    time = max(len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True))
    first = min(map(len, prompts))
    ids = torch.zeros(len(rows), time, dtype=torch.long)
    kind = torch.promote_types(dtype, torch.float32)
    weights = torch.zeros(1 + len(weightings), len(rows), time - first, dtype=kind)
    for place, (row, prompt, completion) in enumerate(zip(rows, prompts, completions, strict=True)):
        span = slice(len(prompt) - first, len(prompt) + len(completion) - first)
        ids[place, : len(prompt) + len(completion)] = torch.tensor(prompt + completion)
        mask = np.ones(len(completion)) if all_masks is None else np.asarray(all_masks.iloc[row], dtype=np.float64)
        weights[0, place, span] = torch.from_numpy(mask)
        for number, weighting in enumerate(weightings, start=1):
            weights[number, place, span] = torch.from_numpy(mask * weighting[row])
    starts = [len(prompt) - first for prompt in prompts]
    return Chunk(rows, ids.to(device), weights.to(device), starts, [len(completion) for completion in completions])


class Objective:
    r"""Log-probabilities of a model's last tokens, to be differentiated; enter it as a context before calling it.

    Calling it with ``call`` (the model, or the model at given parameters), ``input_ids`` (batch, time) and ``kept``
    gives the :math:`\log\pi(y_t)` of the last ``kept`` tokens, (batch, kept), and their :class:`TokenStatistics`.
    The objective is their sum weighted by :math:`w_t`: the backward pass starts from the token weights.

    Args:
        model: a causal language model of transformers.
        temperature: the divisor of the logits.
        traced: whether torch.func differentiates the objective. Otherwise logits are processed a few rows at a time,
            and the only other array of their size is their gradient; of long sequences, no array of their size exists,
            see :mod:`gradstats.gradients.head`.
    """

    def __init__(self, model: CausalModel, temperature: float, *, traced: bool = False) -> None:
        self._temperature = temperature
        self._traced = traced
        self._model = model
        self._head = output_embedding(model)
        # The forward method of a wrapper around the model (peft's) accepts any keywords.
        inner: nn.Module = getattr(model, "get_base_model", lambda: model)()
        self._trims_logits = "logits_to_keep" in inspect.signature(inner.forward).parameters
        self._hidden: Tensor | None = None
        self.hidden: Tensor | None = None  # (batch, kept, width), what entered the output embedding, after a call

    def __enter__(self) -> Objective:
        def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._hidden = inputs[0]

        self._handle = self._head.register_forward_pre_hook(keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self._hidden = None

    def __call__(
        self, call: Callable[..., ModelOutput], input_ids: Tensor, kept: int, head_sum: HeadReducer | None = None
    ) -> tuple[Tensor, TokenStatistics]:
        """Log-probabilities and statistics of the last ``kept`` tokens; arguments as in the class.

        Where the head goes in slices, ``head_sum`` takes its gradient by sequence.
        """
        sliced = None if self._traced else sliced_head(self._model, len(input_ids) * kept)
        forget_lengths(self._model)
        # Logits are only needed where a completion token is predicted: one position before it.
        options = {"logits_to_keep": kept + 1} if self._trims_logits else {}
        drawn = input_ids[:, -kept:]
        if sliced is not None:
            with self._in_slices(drawn, sliced, head_sum) as found:
                output: Tensor = call(input_ids, use_cache=False, **options)["logits"]
            logprobs, entropy, sum_pi_squared = found
            if sliced == HeadMap():  # wrappers that gather weights for a backward pass watch the model's output
                logprobs = output[..., 0]
        else:
            logits: Tensor = call(input_ids, use_cache=False, **options)["logits"]
            if logits.shape[1] > kept + 1:
                logits = logits[:, -kept - 1 :]
            if self._traced:
                logprobs, _, entropy, sum_pi_squared = _distribution(logits[:, :-1], drawn, self._temperature)
            else:
                logprobs, entropy, sum_pi_squared = TokenLogprobs.apply(logits, drawn, self._temperature)  # pyright: ignore
        if self._hidden is None:
            raise UnsupportedModuleError(
                f"the forward pass of {type(self._model).__name__} does not call its output embedding "
                f"({type(self._head).__name__}): measure the model without the wrapper around its forward method"
            )
        self.hidden = hidden = self._hidden[:, -kept - 1 : -1].detach().to(logprobs.dtype)
        statistics = (logprobs, entropy, sum_pi_squared, hidden.square().sum(dim=-1))
        return logprobs, TokenStatistics(*(values.detach() for values in statistics))

    @contextmanager
    def _in_slices(self, drawn: Tensor, of_products: HeadMap, head_sum: HeadReducer | None) -> Iterator[list[Tensor]]:
        """Let the output embedding return log-probabilities, (batch, kept, 1); yields them and their statistics."""
        found: list[Tensor] = []

        def forward(hidden: Tensor) -> Tensor:
            predicting = hidden[:, -drawn.shape[1] - 1 : -1]
            if head_sum is not None and torch.is_grad_enabled() and not predicting.requires_grad:
                predicting = predicting.detach().requires_grad_()  # the backward pass has to reach the head
            weight, bias = self._head.weight, getattr(self._head, "bias", None)
            found[:] = HeadLogprobs.apply(predicting, weight, bias, drawn, self._temperature, of_products, head_sum)  # pyright: ignore
            return found[0][..., None]

        with replaced_forward(self._head, forward):
            yield found


def _distribution(logits: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probability of the sampled token, log-normaliser, entropy and Σπ² of (…, vocabulary) logits."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    normaliser = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, drawn[..., None])[..., 0] - normaliser
    log_pi = (logits - normaliser[..., None]).detach()
    pi = log_pi.exp()
    return logprobs, normaliser, -(pi * log_pi).sum(dim=-1), pi.square().sum(dim=-1)


class TokenLogprobs(torch.autograd.Function):
    r"""Log-probabilities of sampled tokens with their statistics, a few rows of logits at a time.

    Arguments: logits (batch, kept + 1, vocabulary), of which the last position predicts nothing; the sampled tokens
    (batch, kept); the temperature. Returns log-probabilities, entropies and :math:`\sum\pi^2`, (batch, kept) each, of
    which the first is differentiable:
    :math:`\partial \log\pi(y) / \partial z_k = (1[k = y] - \pi_k) / \tau`.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and sums of squared probabilities."""
        kind = torch.promote_types(logits.dtype, torch.float32)
        results = torch.empty(4, *drawn.shape, dtype=kind, device=logits.device)
        for row, span in _slices(logits, drawn.shape[1]):
            values = _distribution(logits[row, span], drawn[row, span], temperature)
            for place, value in zip(results, values, strict=True):
                place[row, span] = value
        logprobs, normaliser, entropy, sum_pi_squared = results
        ctx.save_for_backward(logits, drawn, normaliser)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy, sum_pi_squared)
        return logprobs, entropy, sum_pi_squared

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Return gradient of the logits."""
        logits, drawn, normaliser = ctx.saved_tensors
        scale = cotangents[0] / ctx.temperature
        gradient = torch.empty_like(logits)
        gradient[:, -1] = 0
        counts = (scale != 0).cpu()
        for row, span in _slices(logits, drawn.shape[1]):
            if not counts[row, span].any():
                gradient[row, span] = 0
                continue
            weights = scale[row, span, None]
            of_slice = logits[row, span].to(scale.dtype) / ctx.temperature
            of_slice.sub_(normaliser[row, span, None]).exp_().mul_(-weights)
            gradient[row, span] = of_slice.scatter_add_(1, drawn[row, span, None], weights)
        return gradient, None, None


def _slices(logits: Tensor, kept: int) -> Iterator[tuple[int, slice]]:
    """Yield sequence and span of positions of each slice; on a CPU, slices are small enough for the cache."""
    size = 2**19 if logits.device.type == "cpu" else 2**26
    step = max(1, size // logits.shape[-1])
    for row in range(len(logits)):
        for start in range(0, kept, step):
            yield row, slice(start, min(start + step, kept))
