"""The fused experts of a mixture: their computation, and the gradients of their weights by sequence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradstats.gradients.engines.grouped_linear import GroupedLinear
from gradstats.gradients.engines.routed_products import RoutedProducts
from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe

# What transformers' decorator ``use_experts_implementation`` sets; every implementation of the experts goes by it.
_FLAGS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel", "_apply_gate")


@dataclass(frozen=True)
class RoutedInputs:
    """The inputs of one projection of the experts.

    Attributes:
        owners: (pairs,), the sequence of each pair of a token and an expert; pairs are sorted by expert.
        experts: (pairs,), its expert.
        inputs: (rows, inputs), from which the pairs take their inputs.
        places: (pairs,), the row of each pair in ``inputs``.
    """

    owners: Tensor
    experts: Tensor
    inputs: Tensor
    places: Tensor


@dataclass(frozen=True)
class ExpertsLayer:
    """Experts whose weights are stored as one tensor, for any of transformers' experts implementations.

    Their forward pass is computed here, with the rows grouped by expert: no implementation shows the output of each
    projection. It differs from all of them in rounding only.

    Attributes:
        path: the module's name in the model.
        module: the module.
        names: name of each selected parameter in the module → its name in the model.
    """

    path: str
    module: Any
    names: dict[str, str]

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether a module is of this kind, with no parameters but its projections'."""
        if not all(hasattr(module, flag) for flag in _FLAGS) or "forward" in vars(module):
            return False
        experts, is_dispatched = cast("Any", module), hasattr(type(module).forward, "__wrapped__")
        if experts.has_post_expert_norm or experts._is_expert_parallel:
            return False
        if not is_dispatched or len(_arguments(module)) != 3:
            return False
        expected = {name for pair in _projections(experts) for name in pair if name is not None}
        parameters = dict(module.named_parameters())
        return set(parameters) == expected and all(parameter.is_floating_point() for parameter in parameters.values())

    @property
    def projections(self) -> Iterator[tuple[str, str | None]]:
        """The names of weight and bias of both projections, in the order of the computation."""
        return _projections(self.module)

    def term_kinds(self) -> Iterator[tuple[str, type]]:
        """Yield each selected parameter with the kind of term that one call of the module adds to its gradient."""
        weights = [weight for weight, _ in self.projections]
        for attribute, name in self.names.items():
            yield name, RoutedProducts if attribute in weights else Tensor

    def forward(
        self,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        batch: int,
        times: Collection[int],
        record: Callable[[int, RoutedInputs, Tensor], Tensor],
    ) -> Tensor:
        """Compute the module's output.

        Args:
            args: positional arguments of the module: hidden states (tokens, width), and the experts and weights to
                which the router sends each token, (tokens, k) both.
            kwargs: those given by name.
            batch: number of sequences.
            times: the possible numbers of positions.
            record: gets the number of a projection, its inputs and its output (pairs, outputs), and returns the output.

        Raises:
            UnsupportedModuleError: when sequences cannot be distinguished.
        """
        module = self.module
        given = {**dict(zip(_arguments(module), args, strict=False)), **kwargs}
        hidden, chosen, scores = (cast("Tensor", given[name]) for name in _arguments(module))
        n_tokens, n_chosen = len(hidden), chosen.shape[-1]
        if hidden.ndim != 2 or (batch > 1 and n_tokens not in {batch * time for time in times}):
            raise UnsupportedModuleError(
                f'engine="ghost" cannot distinguish sequences in {describe(self.path, module)}, which gets a tensor of '
                f'shape {tuple(hidden.shape)} for {batch} sequences: use engine="loop"'
            )
        (up, up_bias), (down, down_bias) = self.projections
        weight = getattr(module, up)
        experts, order = torch.sort(chosen.reshape(-1), stable=True)
        # An index beyond the last expert, which some routers give, stands for none.
        counts = torch.bincount(experts, minlength=len(weight))[: len(weight)]
        n_pairs = int(counts.sum())
        experts, order = experts[:n_pairs], order[:n_pairs]
        tokens = order // n_chosen
        owners = tokens // (n_tokens // batch)

        def project(number: int, rows: Tensor, name: str, bias: str | None, source: Tensor, places: Tensor) -> Tensor:
            found = cast("Tensor", GroupedLinear.apply(rows, getattr(module, name), counts, module.is_transposed))
            if bias is not None:
                found = found + getattr(module, bias)[experts]
            return record(number, RoutedInputs(owners, experts, source.detach(), places), found)

        projected = project(0, hidden.index_select(0, tokens), up, up_bias, hidden, tokens)
        inner = module._apply_gate(projected) if module.has_gate else module.act_fn(projected)
        found = project(1, inner, down, down_bias, inner, torch.arange(n_pairs, device=hidden.device))
        weighted = found * scores.reshape(-1)[order, None]
        every = weighted.new_zeros(n_tokens * n_chosen, weighted.shape[1]).index_copy(0, order, weighted)
        return every.view(n_tokens, n_chosen, -1).sum(dim=1).to(hidden.dtype)

    def terms(
        self, number: int, inputs: RoutedInputs, gradient: Tensor, batch: int
    ) -> Iterator[tuple[str, RoutedProducts | Tensor]]:
        """Yield the gradients of the selected parameters of one projection, for each sequence.

        Args:
            number: which projection.
            inputs: its inputs.
            gradient: (pairs, outputs), the gradient of its outputs.
            batch: number of sequences.
        """
        weight, bias = list(self.projections)[number]
        if weight in self.names:
            yield (
                self.names[weight],
                RoutedProducts(
                    inputs.owners, inputs.experts, inputs.inputs, inputs.places, gradient, self.module.is_transposed
                ),
            )
        if bias in self.names:
            n_experts = len(getattr(self.module, weight))
            rows = gradient.new_zeros(batch * n_experts, gradient.shape[1])
            rows.index_add_(0, inputs.owners * n_experts + inputs.experts, gradient)
            yield self.names[bias], rows.view(batch, n_experts, -1)


def experts_implementation(model: nn.Module, engine: str) -> str | None:
    """Return what computes a model's fused experts under an engine; None for a model that has none."""
    if not any(ExpertsLayer.handles(module) for module in model.modules()):
        return None
    own = str(cast("Any", model).config._experts_implementation)
    return f"ghost, in place of {own}" if engine == "ghost" else own


def _projections(module: Any) -> Iterator[tuple[str, str | None]]:
    for name in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj"):
        yield name, f"{name}_bias" if module.has_bias else None


def _arguments(module: nn.Module) -> list[str]:
    """Return the names of the arguments of a module's forward method."""
    return list(inspect.signature(type(module).forward).parameters)[1:]
