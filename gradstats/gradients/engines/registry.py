"""The engines by name, and the two that are simple: a loop over sequences, and ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from transformers.utils import ModelOutput

from gradstats.gradients.attention import measuring_attention, refuse_mixed_lengths
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.reduction import ChunkResult, reduce_gradients, stack_weightings
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, refuse_replaced, whole_parameters
from gradstats.gradients.recompute import recomputed_layers
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.memory import is_out_of_memory
from gradstats.policy.policy import Policy


def loop_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate the sequences of a chunk one after the other, each without its padding.

    The reference for every other engine, and the best choice for a single very long sequence: it needs the memory of
    one backward pass.
    """
    held = whole_parameters(policy.model, selection)
    names, tensors = list(held), list(held.values())
    n_weightings = len(chunk.weights)
    by_weighting: list[list[tuple[np.ndarray, np.ndarray | None]]] = [[] for _ in range(n_weightings)]
    statistics = []
    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        recomputed_layers(policy.model, chunk.recompute),
        torch.enable_grad(),
    ):
        for row, (start, length) in enumerate(zip(chunk.starts, chunk.lengths, strict=True)):
            kept = start + length
            padding = chunk.kept - kept
            ids = chunk.input_ids[row : row + 1, : chunk.input_ids.shape[1] - padding]
            logprobs, tokens = objective(policy.model, ids, kept)
            refuse_replaced(policy.model, held, logprobs)
            for number, weights in enumerate(chunk.weights[:, row, :kept]):
                last = number == n_weightings - 1
                gradients = torch.autograd.grad(
                    logprobs, tensors, weights[None], materialize_grads=True, retain_graph=not last
                )
                batch = {name: gradient[None] for name, gradient in zip(names, gradients, strict=True)}
                by_weighting[number].append(reduce_gradients(batch, selection, sketch))
            statistics.append([torch.nn.functional.pad(values[0], (0, padding)) for values in tokens])
    stacked = TokenStatistics(*(torch.stack(values) for values in zip(*statistics, strict=True)))
    return stack_weightings(chunk, [_join(rows) for rows in by_weighting], stacked)


def chunk_gradient(policy: Policy, chunk: Chunk, selection: ParameterSelection) -> dict[str, Tensor]:
    """Return the gradient of a chunk under its first weighting, summed over its sequences: parameter name → gradient.

    It takes one ordinary backward pass.
    """
    held = whole_parameters(policy.model, selection)
    refuse_mixed_lengths(policy.model, chunk.times)
    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        recomputed_layers(policy.model, chunk.recompute),
        torch.enable_grad(),
    ):
        logprobs, _ = objective(policy.model, chunk.input_ids, chunk.kept)
        refuse_replaced(policy.model, held, logprobs)
        gradients = torch.autograd.grad(logprobs, list(held.values()), chunk.weights[0], materialize_grads=True)
    return dict(zip(held, gradients, strict=True))


def _join(rows: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    sketches = [sketch for _, sketch in rows if sketch is not None]
    return np.concatenate([norms for norms, _ in rows]), np.concatenate(sketches) if sketches else None


def vmap_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate all sequences of a chunk at once, ``vmap(vjp(log-probabilities))``.

    It holds a gradient of every selected parameter for every sequence and every weighting of the chunk.
    """
    model = policy.model
    refuse_mixed_lengths(model, chunk.times)
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise UnsupportedModuleError(
            'engine="vmap" cannot go through gradient checkpointing: switch it off on the model, or use engine="ghost" '
            'or engine="loop"'
        )
    everything = {name: tensor.detach() for name, tensor in model.named_parameters()}
    parameters = {name: tensor.detach() for name, tensor in whole_parameters(model, selection).items()}
    n_weightings = len(chunk.weights)
    with (
        Objective(model, policy.temperature, traced=True) as objective,
        measuring_attention(policy, batched=True),
    ):

        def gradients_of_one(ids: Tensor, weights: Tensor) -> tuple[list[dict[str, Tensor]], TokenStatistics]:
            def logprobs(at: dict[str, Tensor]) -> tuple[Tensor, TokenStatistics]:
                def call(*args: object, **kwargs: object) -> ModelOutput:
                    return functional_call(model, everything | at, args, kwargs)

                values_of_one, statistics = objective(call, ids[None], chunk.kept)
                return values_of_one[0], TokenStatistics(*(values[0] for values in statistics))

            _, pull_back, statistics = vjp(logprobs, parameters, has_aux=True)  # pyright: ignore[reportAssignmentType]
            return [pull_back(weights[number])[0] for number in range(n_weightings)], statistics

        try:
            gradients, statistics = vmap(gradients_of_one)(chunk.input_ids, chunk.weights.transpose(0, 1))
        except RuntimeError as error:
            if is_out_of_memory(error) or not is_tracing_failure(error):
                raise
            raise UnsupportedModuleError(
                f'engine="vmap" cannot trace {policy.name} ({str(error).split(". ")[0]}): for a mixture of experts '
                'call model.set_experts_implementation("batched_mm") first; otherwise use engine="loop"'
            ) from error
        reduced = [reduce_gradients(of_weighting, selection, sketch) for of_weighting in gradients]
    return stack_weightings(chunk, reduced, statistics)


def is_tracing_failure(error: RuntimeError) -> bool:
    """Return whether an error means that torch.func cannot trace the model."""
    words = ("vmap", "functorch", "torch.func", "batching rule", "mutate a captured tensor")
    return any(word in str(error).lower() for word in words)


#: The engines by name, in the order in which ``auto`` tries them.
ENGINES: dict[str, Engine] = {"ghost": ghost_engine, "vmap": vmap_engine, "loop": loop_engine}


Engine = Callable[[Policy, Chunk, ParameterSelection, CountSketch | None], ChunkResult]
