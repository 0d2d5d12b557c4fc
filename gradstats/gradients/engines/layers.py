"""The layers that engine ``ghost`` supports, and the gradients of their parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.experts import ExpertsLayer
from gradstats.gradients.engines.outer_products import OuterProducts
from gradstats.gradients.engines.recomputed import OtherModule, other_modules
from gradstats.gradients.engines.routed_products import RoutedProducts
from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe
from gradstats.gradients.held_parameters import owners


@dataclass(frozen=True)
class EmbeddingRows:
    """The gradient of an embedding, for each sequence: rows of it, by token.

    Attributes:
        ids: (batch, time), the row to which each position adds.
        values: (batch, time, columns), the values that it adds.
    """

    ids: Tensor
    values: Tensor


Term = OuterProducts | EmbeddingRows | RoutedProducts | Tensor


@dataclass(frozen=True)
class Layer(ABC):
    """A module that owns selected parameters.

    Attributes:
        path: its name in the model.
        module: the module.
        names: name of each selected parameter in the module ("weight", "bias") → its name in the model.
    """

    path: str
    module: Any
    names: dict[str, str]

    #: The form of the gradient of ``weight``; the gradient of ``bias`` is always a plain tensor.
    weight_term: ClassVar[type] = Tensor

    @staticmethod
    @abstractmethod
    def handles(module: nn.Module) -> bool:
        """Return whether a module is of this kind."""

    @abstractmethod
    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the gradients of the selected parameters, for each sequence.

        Args:
            inputs: the input of the module, (batch, time, …).
            gradient: the gradient of its output, (batch, time, …).
        """

    def term_kinds(self) -> Iterator[tuple[str, type]]:
        """Yield each selected parameter with the kind of term that one call of the module adds to its gradient."""
        for attribute, name in self.names.items():
            yield name, self.weight_term if attribute == "weight" else Tensor

    def per_token(self, tensor: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return an input or output as (batch, time, …), also where the model has merged the axes batch and time.

        Args:
            tensor: the input or output.
            batch: number of sequences.
            times: the possible numbers of positions.

        Raises:
            UnsupportedModuleError: when sequences cannot be distinguished.
        """
        if tensor.ndim > 2 and tensor.shape[0] == batch:
            return tensor
        if batch == 1 or tensor.shape[0] in {batch * time for time in times}:
            return tensor.reshape(batch, -1, *tensor.shape[1:])
        raise UnsupportedModuleError(
            f'engine="ghost" cannot distinguish sequences in {describe(self.path, self.module)}, which gets a '
            f'tensor of shape {tuple(tensor.shape)} for {batch} sequences: use engine="vmap" or engine="loop"'
        )


class LinearLayer(Layer):
    """``torch.nn.Linear``, weight (outputs, inputs), including the factors of an adapter."""

    weight_term = OuterProducts

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the outer products, gradient first."""
        if "weight" in self.names:
            yield self.names["weight"], OuterProducts(inputs.flatten(1, -2), gradient.flatten(1, -2))
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, 1)


class TransposedLinearLayer(Layer):
    """GPT-2's ``Conv1D``, weight (inputs, outputs)."""

    weight_term = OuterProducts

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, Conv1D) and type(module).forward is Conv1D.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the outer products, input first."""
        if "weight" in self.names:
            yield self.names["weight"], OuterProducts(inputs.flatten(1, -2), gradient.flatten(1, -2), transposed=True)
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, 1)


class EmbeddingLayer(Layer):
    """``torch.nn.Embedding`` of tokens or positions, and subclasses that multiply it by ``embed_scale``."""

    weight_term = EmbeddingRows

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return False where gradients are divided by frequencies or the forward pass renormalises rows."""
        if not isinstance(module, nn.Embedding) or module.scale_grad_by_freq or module.max_norm is not None:
            return False
        return type(module).forward is nn.Embedding.forward or hasattr(module, "embed_scale")

    def per_token(self, tensor: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return the gradient of every position; positions may be given once for all sequences."""
        if tensor.ndim > 1 and tensor.shape[0] in (1, batch):
            return tensor.expand(batch, *tensor.shape[1:])
        return super().per_token(tensor, batch, times)

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the rows; none for the padding token, which torch leaves out as well."""
        scale = getattr(self.module, "embed_scale", None)
        if scale is not None:
            gradient = gradient * torch.as_tensor(scale).to(gradient)
        if self.module.padding_idx is not None:
            gradient = gradient * (inputs != self.module.padding_idx)[..., None]
        yield self.names["weight"], EmbeddingRows(inputs, gradient)


class LayerNormLayer(Layer):
    """``torch.nn.LayerNorm``."""

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the whole gradients."""
        n_axes = len(self.module.normalized_shape)
        if "weight" in self.names:
            normalised = functional.layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)
            yield self.names["weight"], _sum_over_time(gradient * normalised, n_axes)
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, n_axes)


class TorchRMSNormLayer(Layer):
    """``torch.nn.RMSNorm``."""

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.RMSNorm) and type(module).forward is nn.RMSNorm.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the whole gradients."""
        normalised = functional.rms_norm(inputs, self.module.normalized_shape, eps=self.module.eps)
        yield self.names["weight"], _sum_over_time(gradient * normalised, len(self.module.normalized_shape))


class BroadcastLayer(Layer):
    """The RMSNorms of transformers: one vector ``weight``, multiplied or added element by element.

    However the module uses its weight (Gemma adds one to it), a weight of shape (batch, 1, …, width) in its place gives
    the same output, and autograd gives the gradient of that weight by sequence.
    """

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Decide by the name of the class, which differs between architectures only in its prefix."""
        parameters = dict(module.named_parameters(recurse=False))
        is_norm = type(module).__name__.endswith("RMSNorm") and not isinstance(module, nn.RMSNorm)
        return is_norm and set(parameters) == {"weight"} and parameters["weight"].ndim == 1

    def stand_in(self, inputs: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return a weight for each sequence, to be used in place of the module's weight."""
        if inputs.shape[0] != batch:
            self.per_token(inputs, 0, times)
        weight = self.module.weight.detach()
        return weight.expand(batch, *[1] * (inputs.ndim - 2), len(weight)).requires_grad_()

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Return the gradient of the substituted weight, which is the gradient of each sequence."""
        yield self.names["weight"], gradient.flatten(start_dim=1)


KINDS: tuple[type[Layer], ...] = (
    LinearLayer,
    TransposedLinearLayer,
    EmbeddingLayer,
    LayerNormLayer,
    TorchRMSNormLayer,
    BroadcastLayer,
)


def supported_layers(
    model: nn.Module, selection: ParameterSelection, wider: Collection[str] = (), stand_ins: Collection[str] = ()
) -> tuple[list[Layer], list[ExpertsLayer], list[OtherModule]]:
    """Return the modules that own selected parameters: layers of their kind, fused experts, those of no known kind.

    A module of no known kind has the parameters of the modules inside it as well, which it may read without calling
    them.

    Args:
        model: the model.
        selection: the selected parameters.
        wider: paths of further modules that are run again with all that is inside them.
        stand_ins: paths of modules whose own parameters are left out, see
            :mod:`~gradstats.gradients.engines.stand_ins`.

    Raises:
        UnsupportedModuleError: naming the class and the path of the first module that has to be known, or a selected
            parameter that belongs to no module.
    """
    owned = [one for one in owners(model, selection) if one[0] not in stand_ins]
    every = (*KINDS, ExpertsLayer)
    kinds = {path: next((kind for kind in every if kind.handles(module)), None) for path, module, _ in owned}
    unknown = [one for one in owned if kinds[one[0]] is None]
    unknown += [(path, model.get_submodule(path), {}) for path in sorted(wider)]
    others = other_modules(model, selection, sorted(unknown, key=lambda one: one[0].count(".") + bool(one[0])))
    inside = tuple(f"{other.path}." for other in others)
    layers: list[Layer] = []
    experts: list[ExpertsLayer] = []
    for path, module, names in owned:
        kind = kinds[path]
        if kind is None or path in wider or path.startswith(inside):
            continue
        if kind is ExpertsLayer:
            experts.append(ExpertsLayer(path, module, names))
        else:
            layers.append(kind(path, module, names))  # pyright: ignore[reportArgumentType]
    return layers, experts, others


def _sum_over_time(values: Tensor, n_axes: int) -> Tensor:
    """Return (batch, *shape): the sum over all but the first and the last ``n_axes`` axes."""
    axes = tuple(range(1, values.ndim - n_axes))
    return values.sum(dim=axes) if axes else values
