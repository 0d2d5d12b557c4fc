r"""Mean squares of batch gradients, coordinate by coordinate: what Adam's second moments are running means of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradstats.config.defaults import TOKEN_BUDGET
from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.chunking import plan_chunks
from gradstats.gradients.held_parameters import refuse_replaced, whole_parameters
from gradstats.gradients.objective import Objective, make_chunk
from gradstats.gradients.rotary import refuse_mixed_lengths
from gradstats.policy.policy import Policy
from gradstats.policy.threads import suitable_threads
from gradstats.rollouts.table import Rollouts


def mean_square_gradients(
    policy: Policy,
    rollouts: Rollouts,
    selection: ParameterSelection,
    weights: Sequence[Float[np.ndarray, " time"]],
    batches: Sequence[Int[np.ndarray, " batch"]],
    *,
    token_budget: int = TOKEN_BUDGET,
    memory_gib: float | None = None,
    finished: Callable[[int, int], None] = lambda n_sequences, n_tokens: None,
) -> dict[str, Tensor]:
    r"""Return :math:`\frac1J \sum_j g_j^2` of each parameter, :math:`g_j = \sum_{i \in j} \sum_t w_{i,t} s_{i,t}`.

    It takes one ordinary backward pass of each chunk, and the memory of two more gradients.

    Args:
        policy: the policy.
        rollouts: the completions.
        selection: the parameters.
        weights: for each completion, the weight of each of its tokens in the gradient of its batch.
        batches: J batches, each the rows of its completions.
        token_budget: as for :func:`gradstats.measure`.
        memory_gib: as for :func:`gradstats.measure`.
        finished: called after each chunk with its numbers of sequences and tokens.

    Returns:
        Parameter name → mean squares, at least in float32.

    Raises:
        ValueError: where the gradient of a batch is not finite.
        UnsupportedModuleError: for a model that is sharded or offloaded.
    """
    held = whole_parameters(policy.model, selection)
    total = {name: _zeros(tensor) for name, tensor in held.items()}
    for number, rows in enumerate(batches):
        gradient = {name: _zeros(tensor) for name, tensor in held.items()}
        for of_chunk in plan_chunks(rollouts, policy, selection, token_budget, memory_gib, 0, rows=np.asarray(rows)):
            chunk = make_chunk(rollouts, of_chunk, policy.device, policy.dtype, [weights])
            refuse_mixed_lengths(policy.model, chunk.times)
            with (
                suitable_threads(policy),
                Objective(policy.model, policy.temperature) as objective,
                measuring_attention(policy, batched=False),
                torch.enable_grad(),
            ):
                logprobs, _ = objective(policy.model, chunk.input_ids, chunk.kept)
                refuse_replaced(policy.model, held, logprobs)
                parts = torch.autograd.grad(logprobs, list(held.values()), chunk.weights[1], materialize_grads=True)
            for name, part in zip(held, parts, strict=True):
                gradient[name] += part
            finished(len(of_chunk), chunk.n_tokens)
        for name, values in gradient.items():
            if not bool(torch.isfinite(values).all()):
                raise ValueError(
                    f"the gradient of {name} in batch {number} of the estimate of second moments is not finite: leave "
                    'the completions that cause it out, or take dtype="float32"'
                )
            total[name] += values.square() / len(batches)
    return total


def _zeros(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)
