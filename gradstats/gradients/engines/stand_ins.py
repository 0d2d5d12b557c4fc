"""Vectors that modules read outside the call of their owner: each sequence gets a copy of its own.

A vector of shape (width,) that is only ever multiplied with, or added to, tensors of shape (batch, time, width) can be
replaced by one of shape (batch, 1, width) for the whole forward pass, and autograd gives its gradient by sequence. That
it is used so is not known from the module, but shown by :func:`broadcasts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradstats.gradients.engines.interaction import TOLERANCES
from gradstats.policy.model import CausalModel


@dataclass(frozen=True)
class StandIns:
    """A module whose own parameters are replaced during the forward pass.

    Attributes:
        path: its name in the model.
        module: the module.
        names: name of each selected parameter in the module → its name in the model.
    """

    path: str
    module: nn.Module
    names: dict[str, str]

    @property
    def are_vectors(self) -> bool:
        """Whether each of the parameters has one axis."""
        return all(self.module.get_parameter(attribute).ndim == 1 for attribute in self.names)

    def terms(self) -> Iterator[tuple[str, type]]:
        """Yield each parameter with the kind of its gradient."""
        for name in self.names.values():
            yield name, Tensor

    @contextmanager
    def replaced(self, values: dict[str, Tensor]) -> Iterator[None]:
        """Let the module hold other tensors in place of its parameters.

        Args:
            values: name in the module → tensor.
        """
        own = {attribute: self.module._parameters[attribute] for attribute in values}
        self.module._parameters.update(values)  # pyright: ignore[reportArgumentType, reportCallIssue]
        try:
            yield
        finally:
            self.module._parameters.update(own)

    def by_sequence(self, batch: int) -> dict[str, Tensor]:
        """Return a copy of each parameter for every sequence, (batch, 1, width), that requires a gradient."""
        vectors = {attribute: self.module.get_parameter(attribute).detach() for attribute in self.names}
        return {
            attribute: vector.expand(batch, 1, len(vector)).requires_grad_() for attribute, vector in vectors.items()
        }


def broadcasts(model: CausalModel, stand_ins: Sequence[StandIns], ids: Tensor) -> bool:
    """Return whether vectors that differ between sequences give each sequence the output that its own vectors give.

    Args:
        model: the model.
        stand_ins: the modules whose vectors are replaced.
        ids: (batch, time), a few tokens.
    """
    generator = torch.Generator().manual_seed(0)

    def different(vector: Tensor) -> Tensor:
        noise = torch.randn(len(ids), 1, len(vector), generator=generator, dtype=torch.float64).to(vector)
        return vector.detach() * (1 + 0.1 * noise) + 0.01 * noise

    chosen = [
        (one, {attribute: different(one.module.get_parameter(attribute)) for attribute in one.names})
        for one in stand_ins
    ]

    def logits(row: int | None) -> Tensor:
        with ExitStack() as stack:
            for one, values in chosen:
                of_row = values if row is None else {name: value[row, 0] for name, value in values.items()}
                stack.enter_context(one.replaced(of_row))
            return model(ids, use_cache=False)["logits"]

    with torch.no_grad():
        try:
            together = logits(None)
        except (RuntimeError, ValueError, IndexError):  # shapes that do not fit
            return False
        allowed = TOLERANCES.get(together.dtype.itemsize, 1e-1) * together.abs().max()
        return all(bool((together[row] - logits(row)[row]).abs().max() <= allowed) for row in range(len(ids)))
