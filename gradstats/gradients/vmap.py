"""Engine ``vmap``: per-sequence gradients by ``torch.func``, for any architecture that it can trace."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.reduction import ChunkResult, reduce_gradients
from gradstats.gradients.sketches import CountSketch
from gradstats.policy import Policy


def vmap_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate all sequences of a chunk at once, ``vmap(grad(objective))``.

    Holds a gradient of every selected parameter for every sequence of the chunk.

    Raises:
        ValueError: when gradient checkpointing is on, which torch.func cannot go through.
    """
    model = policy.model
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            'engine="vmap" cannot go through gradient checkpointing: switch it off on the model, or use engine="loop"'
        )
    everything = {name: tensor.detach() for name, tensor in model.named_parameters()}
    parameters = {name: everything[name] for name in selection.parameters}
    with Objective(model, policy.temperature) as objective, measuring_attention(policy, batched=True):

        def value(
            at: dict[str, torch.Tensor], ids: torch.Tensor, weights: torch.Tensor
        ) -> tuple[torch.Tensor, TokenStatistics]:
            def call(*args: Any, **kwargs: Any) -> Any:
                return functional_call(model, everything | at, args, kwargs)

            return objective(call, ids, weights)

        per_sequence = vmap(grad(value, has_aux=True), in_dims=(None, 0, 0))
        gradients, statistics = per_sequence(parameters, chunk.input_ids, chunk.weights)
    return ChunkResult(chunk, *reduce_gradients(gradients, selection, sketch), statistics)
