"""The ranks that hold a model together, and the gradients of a model that is sharded over them (FSDP2).

Every rank has to measure the same sequences in the same order, since each forward and backward pass gathers weights
from all of them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from gradstats.gradients.parameters import ParameterSelection, held_parameters
from gradstats.policy.sharding import reshard
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import digest

T = TypeVar("T")


class GroupMemoryError(RuntimeError):
    """Memory ran out on one of several ranks: the others wait for it in a pass, and all have to begin again."""

    def __init__(self, n_sequences: int, n_tokens: int, token_budget: int) -> None:
        # The arguments as they are, from which the exception is made again in another process.
        super().__init__(n_sequences, n_tokens, token_budget)
        self.token_budget = token_budget  # the most tokens to measure at once from now on

    def __str__(self) -> str:
        """Return one sentence."""
        n_sequences, n_tokens, token_budget = self.args
        return (
            f"memory ran out on one rank, on {n_sequences} sequences of {n_tokens} tokens together: all ranks have to "
            f"begin again, with at most {token_budget} tokens at once (token_budget={token_budget})"
        )


@dataclass(frozen=True)
class Ranks:
    """The ranks that hold a model together, and which of them this process is; one alone for a whole model."""

    rank: int = 0  # this process, from 0
    size: int = 1
    group: distributed.ProcessGroup | None = None  # through which they exchange results; None where there is one

    @classmethod
    def of(cls, model: nn.Module) -> Ranks:
        """Return the ranks over which a model's weights are divided.

        Where the weights are also replicated, over a mesh of two axes, every rank measures everything.
        """
        mesh = next((tensor.device_mesh for tensor in model.parameters() if isinstance(tensor, DTensor)), None)
        if mesh is None or mesh.ndim != 1 or mesh.size() == 1:
            return cls()
        return cls(mesh.get_local_rank(), mesh.size(), mesh.get_group())

    def require_same(self, rollouts: Rollouts) -> None:
        """Refuse rollouts that are not those of the other ranks, whose passes would gather weights for nothing."""
        if self.size == 1:
            return
        columns = ("prompt_tokens", "completion_tokens")
        tokens = [[list(map(int, row)) for row in rollouts.frame[name]] for name in columns]
        if len(set(self.exchange(digest(tokens)))) > 1:
            raise ValueError(
                f"the {self.size} ranks that hold the model were given different rollouts: give every rank the same "
                "ones, which are measured by all ranks together"
            )

    def common_plan(self, plan: list[np.ndarray], rollouts: Rollouts) -> list[np.ndarray]:
        """Return the chunks that all ranks deal: those of the first, whose machine may have another memory."""
        self.require_same(rollouts)
        return self.exchange(plan)[0]

    def own(self, plan: Sequence[T]) -> T:
        """Return what this rank does in the next round: the last again where less is left than there are ranks."""
        return plan[min(self.rank, len(plan) - 1)]

    def exchange(self, value: T) -> list[T]:
        """Return the value of every rank in their order, with tensors in the CPU's memory."""
        if self.size == 1:
            return [value]
        packed = io.BytesIO()
        torch.save(value, packed)
        every: list[bytes] = [b""] * self.size
        distributed.all_gather_object(every, packed.getvalue(), group=self.group)
        # The bytes are those of the other ranks of this measurement.
        return [torch.load(io.BytesIO(one), map_location="cpu", weights_only=False) for one in every]


def gathered_gradients(
    model: nn.Module, selection: ParameterSelection, result: Tensor, start: Tensor
) -> dict[str, Tensor]:
    """Return whole gradients of a sharded model by one backward pass, name → gradient.

    Autograd cannot differentiate with respect to shards: the backward pass accumulates gradients, averaged over the
    ranks, which are all the same where the ranks differentiate the same sequence. Gradients of the model's own are
    kept.
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
