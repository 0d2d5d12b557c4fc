"""Forward derivatives of a model's layers along a random direction that is never formed as a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.ghost import first_input
from gradstats.gradients.engines.layers import EmbeddingLayer, Layer, LinearLayer, TransposedLinearLayer
from gradstats.gradients.held_parameters import owners
from gradstats.gradients.tokens.tangents import Factors, Tangents

_KINDS = (LinearLayer, TransposedLinearLayer, EmbeddingLayer)


class FactoredLayers:
    """The layers whose weights move along products of two thin factors.

    Inside :meth:`moving`, forward-mode differentiation with respect to ``epsilon`` moves each of these weights along
    its direction.

    Args:
        model: the model.
        selection: the parameters that move.
        tangents: the directions.

    Attributes:
        shapes: parameter name → shape of each of these weights.
    """

    def __init__(self, model: nn.Module, selection: ParameterSelection, tangents: Tangents) -> None:
        found: dict[str, list[tuple[nn.Module, type[Layer]]]] = {}
        elsewhere: set[str] = set()
        for _, module, names in owners(model, selection):
            kind = next((kind for kind in _KINDS if kind.handles(module)), None)
            for attribute, name in names.items():
                if kind is None or attribute != "weight" or not tangents.has_factors(selection.parameters[name].shape):
                    elsewhere.add(name)
                else:
                    found.setdefault(name, []).append((module, kind))
        self._owners = {name: modules for name, modules in found.items() if name not in elsewhere}
        self.shapes = {name: tuple(selection.parameters[name].shape) for name in self._owners}

    @contextmanager
    def moving(self, factors: dict[str, Factors], epsilon: Tensor) -> Iterator[None]:
        """Move the weights while the context is open.

        Args:
            factors: parameter name → factors of one direction, (rows, rank) and (columns, rank); other weights are
                fixed.
            epsilon: scalar, differentiated forward with tangent 1.
        """
        handles = [
            module.register_forward_hook(_moved(module, kind, pair, epsilon), with_kwargs=True)
            for name, pair in factors.items()
            for module, kind in self._owners[name]
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _moved(module: nn.Module, kind: type[Layer], factors: Factors, epsilon: Tensor) -> Callable[..., Tensor]:
    def direction(entered: Tensor) -> Tensor:
        """Return the derivative of the module's output with respect to its weight, along the direction."""
        left, right = factors.left, factors.right
        if kind is LinearLayer:
            return (entered @ right) @ left.transpose(-1, -2)
        if kind is TransposedLinearLayer:
            return (entered @ left) @ right.transpose(-1, -2)
        rows = nn.functional.embedding(entered, left)
        padding = cast("nn.Embedding", module).padding_idx
        if padding is not None:  # its row has no gradient
            rows = rows * (entered != padding)[..., None]
        scale = getattr(module, "embed_scale", None)
        return (rows if scale is None else rows * torch.as_tensor(scale).to(rows)) @ right.transpose(-1, -2)

    def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: Tensor) -> Tensor:
        return _Moved.apply(output, first_input(args, kwargs), epsilon, direction)  # pyright: ignore

    return after


class _Moved(torch.autograd.Function):
    """The identity on a layer's output; its forward derivative adds the derivative along the layer's weight.

    Under vmap over directions the output is the same for all: it is computed once, and only the derivative has an
    axis of directions.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(output: Tensor, entered: Tensor, epsilon: Tensor, direction: Callable[[Tensor], Tensor]) -> Tensor:
        return output.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Tensor) -> None:
        ctx.save_for_forward(inputs[1])
        ctx.direction = inputs[3]

    @staticmethod
    def vmap(info: object, in_dims: tuple[int | None, ...], *inputs: object) -> tuple[Tensor, int | None]:
        return _Moved.apply(*inputs), in_dims[0]  # pyright: ignore

    @staticmethod
    def jvp(ctx: Any, d_output: Tensor | None, *_: object) -> Tensor:
        (entered,) = ctx.saved_tensors
        moved = ctx.direction(entered)
        return moved if d_output is None else d_output + moved
