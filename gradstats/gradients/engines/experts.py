r"""Squared norms and sketches of the gradients of a mixture's experts.

Of expert :math:`e`, a sequence's gradient is the sum over the tokens that the router sends to it,
:math:`\nabla W_e = \sum_{t \to e} g_{t,e} x_{t,e}^\top`: few outer products, for as many matrices as there are experts.
Its squared norm costs least in the Gram form of :mod:`~gradstats.gradients.engines.reduction`, and the gradient
itself, which is much larger than all :math:`x` and :math:`g` together, is formed for sketches only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradstats.gradients.engines.reduction import OuterProducts, Reduction, sq_norms
from gradstats.gradients.parameters import UnsupportedModuleError, describe
from gradstats.policy.memory import is_accelerator, is_out_of_memory

# The fused kernel of CUDA reads rows that begin at multiples of this many bytes.
_ALIGNMENT = 16


class GroupedLinear(torch.autograd.Function):
    """Multiply groups of rows by one matrix each; only the rows are differentiated.

    Arguments: rows (n, inputs), sorted by group; matrices (groups, outputs, inputs), or (groups, inputs, outputs) where
    ``transposed``; the number of rows of each group; ``transposed``. Returns (n, outputs).
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, counts: Tensor, transposed: bool) -> Tensor:
        """Return the products."""
        ctx.save_for_backward(matrices, counts)
        ctx.transposed = transposed
        return _grouped(rows.to(matrices.dtype), matrices if transposed else matrices.mT, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the rows."""
        matrices, counts = ctx.saved_tensors
        return (
            _grouped(gradients[0].contiguous(), matrices.mT if ctx.transposed else matrices, counts),
            None,
            None,
            None,
        )


def _grouped(rows: Tensor, matrices: Tensor, counts: Tensor) -> Tensor:
    """Multiply each group of rows by its matrix, (groups, inputs, outputs)."""
    aligned = all(size * rows.element_size() % _ALIGNMENT == 0 for size in matrices.shape[1:])
    if is_accelerator(rows.device) and aligned and multiplies_groups(rows.device, rows.dtype):
        return functional.grouped_mm(rows, matrices, offs=counts.cumsum(0, dtype=torch.int32))
    found = rows.new_empty(len(rows), matrices.shape[2])
    first = 0
    for group, count in enumerate(counts.tolist()):
        if count:
            torch.mm(rows[first : first + count], matrices[group], out=found[first : first + count])
        first += count
    return found


@lru_cache(maxsize=16)
def multiplies_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Try the grouped product on two small matrices: torch, the device or the dtype may not have it.

    Memory that runs out is an error, which is not remembered: it says nothing of the device.
    """
    rows, ends = torch.eye(16, dtype=dtype, device=device), torch.tensor([4, 16], dtype=torch.int32, device=device)
    matrices = torch.stack([rows, 2 * rows])
    try:
        found = functional.grouped_mm(rows, matrices, offs=ends)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return False
    return torch.equal(found, torch.cat([rows[:4], 2 * rows[4:]]))


# Elements of padded inputs and gradients that are reduced at a time.
_ELEMENTS = 2**22


@dataclass(frozen=True)
class RoutedProducts:
    """The gradient of the experts' weight for each sequence: outer products, each in the matrix of one expert."""

    owners: Tensor  # (pairs,), the sequence of each pair of a token and an expert
    experts: Tensor  # (pairs,), its expert
    inputs: Tensor  # (rows, inputs), from which the pairs take their inputs
    places: Tensor  # (pairs,), the row of each pair in inputs
    gradients: Tensor  # (pairs, outputs), the gradients of the expert's outputs
    transposed: bool = False  # False for a weight (experts, outputs, inputs), True for (experts, inputs, outputs)

    @classmethod
    def join(cls, terms: list[RoutedProducts]) -> RoutedProducts:
        """Return the sum of the terms of a weight that is used several times."""
        if len(terms) == 1:
            return terms[0]
        places, n_rows = [], 0
        for term in terms:
            places.append(term.places + n_rows)
            n_rows += len(term.inputs)
        return cls(
            torch.cat([term.owners for term in terms]),
            torch.cat([term.experts for term in terms]),
            torch.cat([term.inputs for term in terms]),
            torch.cat(places),
            torch.cat([term.gradients for term in terms]),
            terms[0].transposed,
        )

    def add_to(self, reduction: Reduction, name: str) -> None:
        """Add the gradients of a parameter to norms and sketches."""
        batch = reduction.n_sequences
        segments = _Segments.of(self.experts * batch + self.owners)
        total = torch.zeros(batch, dtype=torch.float64, device=self.owners.device)
        preconditioner = reduction.preconditioner_of(name)
        if preconditioner is None:
            for keys, pairs, valid in segments.by_length(self.inputs.shape[1] + self.gradients.shape[1]):
                total.index_add_(0, keys % batch, self._products(pairs, valid).sq_norms(reduction.dtype))
        if preconditioner is not None or reduction.sketch is not None:
            for keys, pairs, valid in segments.by_group(batch):
                norms = self._add_formed(reduction, name, int(keys[0]) // batch, keys % batch, pairs, valid)
                if preconditioner is not None:
                    total.index_add_(0, keys % batch, norms)
        reduction.add_sq_norms(name, total)

    def _add_formed(
        self, reduction: Reduction, name: str, expert: int, sequences: Tensor, pairs: Tensor, valid: Tensor
    ) -> Tensor:
        """Add the gradients of one expert, formed slice by slice, to sketches; return their squared norms."""
        term, preconditioner = self._products(pairs, valid), reduction.preconditioner_of(name)
        norms = torch.zeros(len(sequences), dtype=torch.float64, device=sequences.device)
        of_batch, sketches = reduction.sketches_of(name), None
        if of_batch is not None:
            sketches = of_batch.new_zeros(len(sequences), of_batch.shape[1])
        of_expert = None if preconditioner is None else preconditioner[expert]
        for first, product in term.products(reduction.dtype, of_expert):
            flat = product.flatten(start_dim=1)
            if of_expert is not None:
                norms += sq_norms(flat)
            if reduction.sketch is not None and sketches is not None:
                begin = expert * term.size + first * term.right.shape[2]
                reduction.sketch.add_slice(sketches, name, reduction.size_of(name), begin, flat)
        if of_batch is not None and sketches is not None:
            of_batch.index_add_(0, sequences, sketches)
        return norms

    def _products(self, pairs: Tensor, valid: Tensor) -> OuterProducts:
        gradients = self.gradients[pairs].masked_fill_(~valid[..., None], 0)
        return OuterProducts(self.inputs[self.places[pairs]], gradients, self.transposed)


@dataclass(frozen=True)
class _Segments:
    """Pairs with the same key, sorted."""

    order: Tensor  # (pairs,), the pairs in the order of their keys
    keys: Tensor  # (segments,), the key of each segment, ascending
    begins: Tensor  # (segments,), the place of its first pair in order
    counts: Tensor  # (segments,), its number of pairs

    @classmethod
    def of(cls, keys: Tensor) -> _Segments:
        ordered, order = torch.sort(keys, stable=True)
        distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
        return cls(order, distinct, counts.cumsum(0) - counts, counts)

    def by_length(self, n_features: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield segments of similar lengths, padded to the next power of two: see :meth:`_padded`."""
        classes = torch.ceil(torch.log2(self.counts.double())).long()
        for power in torch.unique(classes).tolist():
            step = max(1, _ELEMENTS // (2**power * n_features))
            for chosen in (classes == power).nonzero()[:, 0].split(step):
                yield self._padded(chosen, 2**power)

    def by_group(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield together the segments whose keys have the same quotient by ``size``: see :meth:`_padded`."""
        _, sizes = torch.unique_consecutive(self.keys // size, return_counts=True)
        for chosen in torch.arange(len(self.keys), device=self.keys.device).split(sizes.tolist()):
            yield self._padded(chosen, int(self.counts[chosen].max()))

    def _padded(self, chosen: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys (segments,), pairs (segments, length), and which of them are no padding.

        The padding repeats pairs of the same segment: values of another sequence could be infinite.
        """
        offsets = torch.arange(length, device=chosen.device)
        counts = self.counts[chosen, None]
        places = self.begins[chosen, None] + torch.minimum(offsets, counts - 1)
        return self.keys[chosen], self.order[places], offsets < counts


# What transformers' decorator ``use_experts_implementation`` sets; every implementation of the experts goes by it.
_FLAGS = ("has_gate", "has_bias", "is_transposed", "_apply_gate")
# What newer versions of transformers say of some experts, and what 5.10 sets where they lie on several devices.
_EXCEPTIONS = ("has_post_expert_norm", "_is_expert_parallel", "_hf_tp_plan")


@dataclass(frozen=True)
class RoutedInputs:
    """The inputs of one projection of the experts."""

    owners: Tensor  # (pairs,), the sequence of each pair of a token and an expert; pairs are sorted by expert
    experts: Tensor  # (pairs,), its expert
    inputs: Tensor  # (rows, inputs), from which the pairs take their inputs
    places: Tensor  # (pairs,), the row of each pair in inputs


@dataclass(frozen=True)
class ExpertsLayer:
    """Experts whose weights are stored as one tensor, for any of transformers' experts implementations.

    Their forward pass is computed here, with the rows grouped by expert: no implementation shows the output of each
    projection. It differs from all of them in rounding only.
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
        if any(getattr(experts, flag, False) for flag in _EXCEPTIONS):
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

        ``args`` are hidden states (tokens, width), and the experts and weights to which the router sends each token,
        (tokens, k) both; ``record`` gets the number of a projection, its inputs and its output (pairs, outputs), and
        returns the output.
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

        ``gradient``, (pairs, outputs), is that of the projection's outputs.
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
