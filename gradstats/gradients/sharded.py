"""Gradients of a model that is sharded over the ranks of a process group (FSDP2), for the self-check.

Every rank has to measure the same sequences in the same order, since each forward and backward pass gathers weights
from all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.held_parameters import held_parameters
from gradstats.policy.sharding import reshard


def gathered_gradients(
    model: nn.Module, selection: ParameterSelection, result: Tensor, start: Tensor
) -> dict[str, Tensor]:
    """Return whole gradients of a sharded model by one backward pass, name → gradient.

    Autograd cannot differentiate with respect to shards: the backward pass accumulates gradients, averaged over the
    ranks, which are all the same where the ranks differentiate the same sequence. Gradients of the model's own are
    kept.

    Args:
        model: the model.
        selection: the parameters.
        result: what the forward pass returned.
        start: the gradient of the result.
    """
    reshard(model)
    kept = {name: tensor.grad for name, tensor in model.named_parameters()}
    for tensor in model.parameters():
        tensor.grad = None
    try:
        torch.autograd.backward(result, start)
        found = {}
        for name, tensor in held_parameters(model, selection).items():
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        return found
    finally:
        for name, tensor in model.named_parameters():
            tensor.grad = kept.get(name)
