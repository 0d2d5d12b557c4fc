"""Engine ``loop``: one ordinary backward pass per sequence."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.reduction import ChunkResult, reduce_gradients, stack_weightings
from gradstats.gradients.held_parameters import refuse_replaced, whole_parameters
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy


def loop_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate the sequences of a chunk one after the other, each without its padding.

    The reference for every other engine, and the best choice for a single very long sequence: it needs the memory of
    one backward pass.

    Raises:
        UnsupportedModuleError: for a model that is sharded or offloaded.
    """
    held = whole_parameters(policy.model, selection)
    names, tensors = list(held), list(held.values())
    n_weightings = len(chunk.weights)
    by_weighting: list[list[tuple[np.ndarray, np.ndarray | None]]] = [[] for _ in range(n_weightings)]
    statistics = []
    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
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


def sequence_gradient(policy: Policy, chunk: Chunk, selection: ParameterSelection) -> dict[str, Tensor]:
    """Return the whole gradient of a chunk of one sequence, parameter name → gradient.

    Raises:
        UnsupportedModuleError: for a model that is sharded or offloaded.
    """
    held = whole_parameters(policy.model, selection)
    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        torch.enable_grad(),
    ):
        logprobs, _ = objective(policy.model, chunk.input_ids, chunk.kept)
        refuse_replaced(policy.model, held, logprobs)
        gradients = torch.autograd.grad(logprobs, list(held.values()), chunk.weights[0], materialize_grads=True)
    return dict(zip(held, gradients, strict=True))


def _join(rows: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    sketches = [sketch for _, sketch in rows if sketch is not None]
    return np.concatenate([norms for norms, _ in rows]), np.concatenate(sketches) if sketches else None
