"""One sequence by an ordinary forward and backward pass: the reference that engines are checked against.

It shares no code with the engines: the sequence is encoded here, log-probabilities come from torch's ``log_softmax``,
and gradients from autograd. The logits of a long sequence are computed a slice at a time, and again in the backward
pass, by torch's checkpointing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gradstats.gradients.attention import forget_lengths, measuring_attention
from gradstats.gradients.distributed import gathered_gradients
from gradstats.gradients.head import replaced_forward, sliced_head
from gradstats.gradients.parameters import (
    ParameterSelection,
    UnsupportedModuleError,
    held_parameters,
    refuse_replaced,
)
from gradstats.gradients.recompute import layers_in_float32, recomputed_layers
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.model import n_logits, output_embedding
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import is_sharded
from gradstats.rollouts.table import Rollouts

# Number of logits, or of a gradient's coordinates, processed at a time.
_ELEMENTS = 2**20
# Logits of a slice, and the most that are held whole: autograd holds several copies of them.
_SLICE = 2**24
# Coordinates of a gradient that are kept, for exact inner products.
_KEPT_COORDINATES = 2**18


@dataclass(frozen=True)
class PlainGradient:
    """The gradient of one sequence under one weighting."""

    sq_norms: dict[str, float]  # parameter name → squared norm
    sketch: np.ndarray | None  # (dim,) in float64, or None
    kept: dict[str, np.ndarray]  # name → coordinates (n,) in float64 of some parameters, small ones first


@dataclass(frozen=True)
class PlainPass:
    """A sequence's gradients, one for each weighting, and the quantities of its completion tokens by name."""

    row: int
    gradients: list[PlainGradient]
    tokens: dict[str, np.ndarray]  # name → (completion length,)
    # the narrower of the dtypes of parameters and of logits, which some models compute in float32 whatever their own
    # dtype: results agree as far as it allows
    dtype: torch.dtype


def plain_pass(
    policy: Policy,
    rollouts: Rollouts,
    row: int,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    weightings: Sequence[np.ndarray] = (),
    recompute: bool = False,
) -> PlainPass:
    """Differentiate one sequence, also under further token weights, each (completion length,)."""
    ids, n_prompt, mask = _encoded(rollouts, row, policy.device)
    kind = torch.promote_types(policy.dtype, torch.float32)
    weights = [mask, *(mask * weighting for weighting in weightings)]
    sharded = is_sharded(policy.model)
    held = held_parameters(policy.model, selection)
    gradients = []
    given = [torch.from_numpy(values).to(policy.device, kind) for values in weights]
    with (
        measuring_attention(policy, batched=False),
        recomputed_layers(policy.model, recompute),
        torch.enable_grad(),
    ):
        scored = _score(policy, ids, n_prompt, given)
        result, narrower = scored.result, min(policy.dtype, scored.result.dtype, key=lambda dtype: dtype.itemsize)
        if not sharded:
            refuse_replaced(policy.model, held, result)
        for number, start in enumerate(scored.starts):
            if sharded:
                # The weights of a pass are released when it ends: each weighting has a forward pass of its own.
                result = result if number == 0 else _score(policy, ids, n_prompt, []).result
                found = gathered_gradients(policy.model, selection, result, start)
            else:
                last = number == len(scored.starts) - 1
                tensors = list(held.values())
                of_tensors = torch.autograd.grad(result, tensors, start, materialize_grads=True, retain_graph=not last)
                found = dict(zip(held, of_tensors, strict=True))
            gradients.append(_reduced(_preconditioned(found, selection), sketch))
    return PlainPass(row, gradients, scored.tokens, narrower)


def sq_norm_in_float32(policy: Policy, rollouts: Rollouts, row: int, selection: ParameterSelection) -> float:
    """Return the squared norm of a sequence's gradient with float32 weights, of one layer at a time."""
    ids, n_prompt, mask = _encoded(rollouts, row, policy.device)
    held = held_parameters(policy.model, selection)
    names = {tensor: name for name, tensor in held.items() if isinstance(tensor, nn.Parameter)}
    sq_norms: dict[str, float] = {}

    def add(found: Mapping[nn.Parameter, Tensor]) -> None:
        named = _preconditioned({names[one]: gradient for one, gradient in found.items()}, selection)
        if not sq_norms.keys().isdisjoint(named):
            raise UnsupportedModuleError("layers share parameters, or run more than once in a pass")
        sq_norms.update(_reduced(named, None).sq_norms)

    with (
        measuring_attention(policy, batched=False),
        layers_in_float32(policy.model, names.keys(), add) as anchor,
        torch.enable_grad(),
    ):
        scored = _score(policy, ids, n_prompt, [torch.from_numpy(mask).to(policy.device, torch.float32)])
        others = [
            one for one in names if one.dtype == torch.float32
        ]  # inside a layer they are not while it does not run
        found = torch.autograd.grad(scored.result, [*others, anchor], scored.starts, allow_unused=True)
        add({one: gradient for one, gradient in zip(others, found, strict=False) if gradient is not None})
    return sum(sq_norms.values())


def plain_tokens(policy: Policy, rollouts: Rollouts, row: int) -> dict[str, np.ndarray]:
    """Return the token quantities of one sequence by a forward pass alone."""
    ids, n_prompt, _ = _encoded(rollouts, row, policy.device)
    with measuring_attention(policy, batched=False), torch.no_grad():
        return _score(policy, ids, n_prompt, []).tokens


def plain_sketch(
    sketch: CountSketch, coordinates: Mapping[str, Float[np.ndarray, "gradients n"]]
) -> Float[np.ndarray, "gradients dim"]:
    """Return sketches of some parameters' gradients, coordinate by coordinate from their definition."""
    n_gradients = len(next(iter(coordinates.values())))
    total = np.zeros((n_gradients, sketch.dim))
    for name, values in coordinates.items():
        index = np.arange(values.shape[1])
        defined = {1: _kept_signs, 2: _hashed_signs}[sketch.version]
        signs, starts = defined(sketch, name, len(index))
        buckets = (starts[index // sketch.dim] + index % sketch.dim) % sketch.dim
        for row, gradient in zip(total, values, strict=True):
            row += np.bincount(buckets, weights=signs * gradient, minlength=sketch.dim)
    return total


def _kept_signs(sketch: CountSketch, name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return signs and starting buckets of version 1."""
    words = np.frombuffer(hashlib.sha256(f"{name}:{size}".encode()).digest(), dtype=np.uint32)
    rng = np.random.default_rng([sketch.seed, *words.tolist()])
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8))[:size]
    return 2.0 * bits - 1.0, rng.integers(0, sketch.dim, size=-(-size // sketch.dim))


def _hashed_signs(sketch: CountSketch, name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return signs and starting buckets of version 2, in unsigned integers."""
    digest = hashlib.sha256(f"sketch 2:{sketch.seed}:{name}:{size}".encode()).digest()
    keys = np.frombuffer(digest, dtype=np.uint64)

    def hashed(n: int, first: np.uint64, second: np.uint64) -> np.ndarray:
        words = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + first
        for key in (second, np.uint64(0)):
            words ^= words >> np.uint64(30)
            words *= np.uint64(0xBF58476D1CE4E5B9)
            words ^= words >> np.uint64(27)
            words *= np.uint64(0x94D049BB133111EB)
            words ^= words >> np.uint64(31)
            words ^= key
        return words

    index = np.arange(size, dtype=np.uint64)
    words = hashed(-(-size // 64), keys[0], keys[1])[index // np.uint64(64)]
    bits = (words >> (index % np.uint64(64))) & np.uint64(1)
    starts = (hashed(-(-size // sketch.dim), keys[2], keys[3]) & np.uint64(2**63 - 1)) % np.uint64(sketch.dim)
    return 2.0 * bits.astype(np.float64) - 1.0, starts.astype(np.int64)


def _encoded(rollouts: Rollouts, row: int, device: torch.device) -> tuple[Tensor, int, np.ndarray]:
    """Return ids (1, time), the number of prompt tokens, and the mask of the completion in float64."""
    entry = rollouts.frame.iloc[row]
    prompt, completion = list(entry["prompt_tokens"]), list(entry["completion_tokens"])
    mask = entry.get("completion_mask")
    counted = np.ones(len(completion)) if mask is None else np.asarray(mask, dtype=np.float64)
    return torch.tensor([prompt + completion], device=device), len(prompt), counted


class _Scored(NamedTuple):
    """A forward pass: what is differentiated, where the backward pass of each weighting starts, token quantities."""

    result: Tensor
    starts: list[Tensor]
    tokens: dict[str, np.ndarray]


def _score(policy: Policy, ids: Tensor, n_prompt: int, weights: Sequence[Tensor]) -> _Scored:
    """Run the model; differentiate its logits, or their log-probabilities where the logits are not to be held."""
    model, drawn, temperature = policy.model, ids[0, n_prompt:], policy.temperature
    head = output_embedding(model)
    of_products = sliced_head(model, len(drawn), _SLICE)
    seen: list[Tensor] = []
    columns: list[Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach())

    def in_slices(hidden: Tensor) -> Tensor:
        assert of_products is not None
        to_logits = of_products
        held = head.weight, getattr(head, "bias", None)

        def of_slice(states: Tensor, tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            logits = to_logits(functional.linear(states, weight, bias)) / temperature
            return torch.stack(_quantities(logits, tokens), dim=1)

        parts = zip(hidden[0, n_prompt - 1 : -1].split(step), drawn.split(step), strict=True)
        columns.append(torch.cat([checkpoint(of_slice, *part, *held, use_reentrant=False) for part in parts]))  # pyright: ignore[reportArgumentType]
        return columns[0][None]

    step = max(1, _SLICE // n_logits(model))
    handle = head.register_forward_pre_hook(keep)
    forget_lengths(model)
    try:
        with nullcontext() if of_products is None else replaced_forward(head, in_slices):
            output: Tensor = model(ids, use_cache=False)["logits"]
    finally:
        handle.remove()
    hidden = seen[-1].reshape(ids.shape[1], -1)[n_prompt - 1 : -1].double().square().sum(dim=1).cpu().numpy()
    if of_products is None:
        logits = output[0, n_prompt - 1 : -1]
        tokens, starts = _tokens(logits, drawn, temperature, weights)
        return _Scored(logits, starts, tokens | {"hidden_sq_norms": hidden})
    # The model may scale what its output embedding returns; wrappers that gather weights watch the model's output.
    table = output[0] if is_sharded(model) else columns[0]
    names = ("logprobs", "entropy", "sum_pi_squared")
    tokens = dict(zip(names, table.detach().double().T.cpu().numpy(), strict=True))
    return _Scored(table[:, 0], list(weights), tokens | {"hidden_sq_norms": hidden})


def _tokens(
    logits: Tensor, drawn: Tensor, temperature: float, weights: Sequence[Tensor]
) -> tuple[dict[str, np.ndarray], list[Tensor]]:
    """Quantities of the tokens, and for each weighting the gradient of the weighted log-probabilities by the logits."""
    starts = [torch.zeros_like(logits) for _ in weights]
    columns: dict[str, list[np.ndarray]] = {"logprobs": [], "entropy": [], "sum_pi_squared": []}
    for span in _spans(logits):
        part = logits[span].detach().to(torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
        with torch.enable_grad():
            found = _quantities(part / temperature, drawn[span])
        for start, values in zip(starts, weights, strict=True):
            start[span] = torch.autograd.grad(found[0], part, values[span], retain_graph=True)[0].to(start.dtype)
        for column, values in zip(columns.values(), found, strict=True):
            column.append(values.detach().double().cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in columns.items()}, starts


def _quantities(logits: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each token, entropy and Σπ² of its distribution, of which the first is differentiable."""
    log_pi = logits.log_softmax(dim=-1)
    logprobs = log_pi.gather(-1, drawn[:, None])[:, 0]  # first: a checkpoint computes again up to here
    pi = log_pi.detach().exp()
    return logprobs, torch.special.entr(pi).sum(dim=-1), pi.square().sum(dim=-1)


def _spans(logits: Tensor) -> Iterator[slice]:
    step = max(1, _ELEMENTS // logits.shape[1])
    for first in range(0, len(logits), step):
        yield slice(first, first + step)


def _preconditioned(gradients: dict[str, Tensor], selection: ParameterSelection) -> dict[str, Tensor]:
    """Multiply each gradient by the metric's P, element by element."""
    return {
        name: gradient * selection.preconditioner[name] if name in selection.preconditioner else gradient
        for name, gradient in gradients.items()
    }


def _reduced(gradients: dict[str, Tensor], sketch: CountSketch | None) -> PlainGradient:
    sq_norms, kept, room = {}, {}, _KEPT_COORDINATES
    total = None
    if sketch is not None:
        first = next(iter(gradients.values()))
        kind = torch.promote_types(first.dtype, torch.float32)
        total = torch.zeros(1, sketch.dim, dtype=kind, device=first.device)
    for name, gradient in sorted(gradients.items(), key=lambda item: item[1].numel()):
        flat = gradient.flatten()
        wide = torch.promote_types(flat.dtype, torch.float32)
        sq_norms[name] = sum(float(span.to(wide).square().double().sum()) for span in flat.split(_ELEMENTS))
        if sketch is not None and total is not None:
            sketch.add(total, name, gradient[None])
            if flat.numel() <= room:
                kept[name] = flat.double().cpu().numpy()
                room -= flat.numel()
    return PlainGradient(sq_norms, None if total is None else total[0].double().cpu().numpy(), kept)
