"""Engine ``loop``: one ordinary backward pass per sequence."""

from __future__ import annotations

import numpy as np
import torch

from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.reduction import ChunkResult, reduce_gradients
from gradstats.gradients.sketches import CountSketch
from gradstats.policy import Policy


def loop_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate the sequences of a chunk one after the other, each without its padding.

    The measure of every other engine, and the best choice for a single very long sequence: memory is that of one
    backward pass.
    """
    names, tensors = list(selection.parameters), list(selection.parameters.values())
    norms, sketches, statistics = [], [], []
    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        torch.enable_grad(),
    ):
        for row, (start, length) in enumerate(zip(chunk.starts, chunk.lengths, strict=True)):
            padding = chunk.weights.shape[1] - start - length
            ids = chunk.input_ids[row, : chunk.input_ids.shape[1] - padding]
            value, tokens = objective(policy.model, ids, chunk.weights[row, : start + length])
            gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
            batch = {name: gradient[None] for name, gradient in zip(names, gradients, strict=True)}
            norm, projected = reduce_gradients(batch, selection, sketch)
            norms.append(norm)
            sketches.append(projected)
            statistics.append([torch.nn.functional.pad(values, (0, padding)) for values in tokens])
    stacked = TokenStatistics(*(torch.stack(values) for values in zip(*statistics, strict=True)))
    joined = None if sketch is None else np.concatenate(sketches)
    return ChunkResult(chunk, np.concatenate(norms), joined, stacked)
