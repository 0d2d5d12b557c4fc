"""Reduce the terms that layers pass on during a backward pass to squared norms and sketches."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from typing import cast

import torch
from torch import Tensor

from gradstats.gradients.engines.layers import EmbeddingLayer, EmbeddingRows, Layer, Term
from gradstats.gradients.engines.outer_products import OuterProducts, contract, gram_strips
from gradstats.gradients.engines.reduction import Reduction, sq_norms
from gradstats.gradients.engines.routed_products import RoutedProducts

#: Address, shape and strides of a tensor.
Place = tuple[int, torch.Size, tuple[int, ...]]


class Uses:
    """Counts of a forward pass, from which a backward pass knows when a parameter's gradient is complete.

    Attributes:
        n_terms: number of terms of each parameter and kind.
        ids: for each embedding, the ids of each use, (batch, time).
        n_sharing: number of layers with the same input, by :func:`_place`.
    """

    def __init__(self) -> None:
        self.n_terms: Counter[tuple[str, type]] = Counter()
        self.ids: dict[str, list[Tensor]] = defaultdict(list)
        self.n_sharing: Counter[Place] = Counter()

    def count(self, layer: Layer, inputs: Tensor) -> None:
        """Record one call of a layer's module."""
        self.n_terms.update(layer.term_kinds())
        if isinstance(layer, EmbeddingLayer):
            self.ids[layer.names["weight"]].append(inputs)
        elif layer.weight_term is OuterProducts and "weight" in layer.names:
            self.n_sharing[_place(inputs.flatten(1, -2))] += 1


class LayerReduction:
    """Reduces each parameter's gradient as soon as all its terms are available.

    Args:
        reduction: accumulates norms and sketches.
        uses: the counts of the forward pass.
    """

    def __init__(self, reduction: Reduction, uses: Uses) -> None:
        self._reduction = reduction
        self._uses = uses
        self._pending: dict[tuple[str, type], list[Term]] = defaultdict(list)
        self._n_sharing = uses.n_sharing.copy()
        self._input_grams: dict[Place, list[Tensor]] = {}
        self._heads: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, term: Term) -> None:
        """Add a term of a parameter's gradient."""
        key = (name, Tensor if isinstance(term, Tensor) else type(term))
        self._pending[key].append(term)
        if len(self._pending[key]) == self._uses.n_terms[key]:
            self._reduce(*key)

    def finish(self) -> None:
        """Reduce the remaining terms: those of modules of which one call did not influence the objective."""
        for kind in (Tensor, OuterProducts, EmbeddingRows, RoutedProducts):
            for name, pending in list(self._pending):
                if pending is kind and (name, kind) in self._pending:
                    self._reduce(name, kind)

    def _reduce(self, name: str, kind: type) -> None:
        if kind is EmbeddingRows and self._pending.get((name, OuterProducts)):
            return  # the terms of the head are not complete, and they come first
        terms = self._pending.pop((name, kind))
        if kind is Tensor:
            self._reduction.add(name, functools.reduce(torch.add, cast("list[Tensor]", terms)))
        elif kind is OuterProducts:
            self._reduce_outer_products(name, OuterProducts.join(cast("list[OuterProducts]", terms)))
        elif kind is RoutedProducts:
            RoutedProducts.join(cast("list[RoutedProducts]", terms)).add_to(self._reduction, name)
        else:
            self._reduce_rows(name, cast("list[EmbeddingRows]", terms))

    def _reduce_outer_products(self, name: str, term: OuterProducts) -> None:
        place = _place(term.inputs)
        n_sharing = self._uses.n_sharing[place] or 1
        self._n_sharing[place] -= 1
        # Inner products of inputs and of gradients do not give those of P∘(Σ_t g_t x_tᵀ), which has to be formed.
        formed = self._reduction.sketch is not None or self._reduction.preconditioner_of(name) is not None
        if formed or not term.prefers_gram(n_sharing):
            self._reduce_products(name, term.without_idle_ends())
        else:
            shared = self._input_grams.pop(place, None) or gram_strips(term.inputs, self._reduction.dtype)
            if self._n_sharing[place] > 0:
                self._input_grams[place] = shared
            self._reduction.add_sq_norms(name, contract(gram_strips(term.gradients, self._reduction.dtype), shared))
        if name in self._uses.ids:
            # Tied to an embedding: ‖H + E‖² = ‖H‖² + 2⟨E, H⟩ + ‖E‖² for the gradients of head and embedding, and ⟨E, H⟩
            # needs only the rows of H at the tokens' ids, (batch, time of the head, time of the embedding).
            ids = torch.cat(self._uses.ids[name], dim=1)[:, None].expand(-1, term.left.shape[1], -1)
            self._heads[name] = term.left.gather(2, ids), term.right
            if (name, EmbeddingRows) in self._pending:
                self._reduce(name, EmbeddingRows)

    def _reduce_products(self, name: str, term: OuterProducts) -> None:
        reduction = self._reduction
        preconditioner = reduction.preconditioner_of(name)
        columns = term.right.shape[2]
        size = term.left.shape[2] * columns
        sketches = reduction.sketches_of(name)
        for first, product in term.products(reduction.dtype, preconditioner):
            flat = product.flatten(start_dim=1)
            reduction.add_sq_norms(name, sq_norms(flat))
            if reduction.sketch is not None and sketches is not None:
                reduction.sketch.add_slice(sketches, name, size, first * columns, flat)

    def _reduce_rows(self, name: str, terms: list[EmbeddingRows]) -> None:
        reduction = self._reduction
        ids = torch.cat([term.ids for term in terms], dim=1)
        values = torch.cat([term.values for term in terms], dim=1).to(reduction.dtype)
        batch, _, columns = values.shape
        n_rows = int(ids.max()) + 1
        owner = torch.arange(batch, device=ids.device)[:, None]
        keys, places = torch.unique(owner * n_rows + ids, return_inverse=True)
        rows = values.new_zeros(len(keys), columns).index_add_(0, places.flatten(), values.flatten(0, 1))
        preconditioner = reduction.preconditioner_of(name)
        if preconditioner is not None:
            rows = rows * preconditioner[keys % n_rows]
        total = torch.zeros(batch, dtype=torch.float64, device=ids.device).index_add_(0, keys // n_rows, sq_norms(rows))
        if name in self._heads:
            # 2⟨E, H⟩ = 2 Σ_{t,s} ⟨e_t, x_s⟩ g_s[id_t], with rows e_t of the embedding's gradient. In a metric
            # 2⟨P∘E, P∘H⟩ = 2⟨P²∘E, H⟩, and row id_t of P² multiplies e_t.
            gathered, inputs = self._heads.pop(name)
            if preconditioner is not None:
                values = values * preconditioner[ids].square()
            products = torch.bmm(inputs.to(reduction.dtype), values.transpose(1, 2))
            total += 2 * products.mul_(gathered).sum(dim=(1, 2)).double()
        reduction.add_sq_norms(name, total)
        sketches = reduction.sketches_of(name)
        if reduction.sketch is not None and sketches is not None:
            size = reduction.size_of(name)
            reduction.sketch.add_rows(sketches, name, size, keys // n_rows, keys % n_rows, rows)


def _place(tensor: Tensor) -> Place:
    """Return a tensor's place in memory, which two tensors that exist at the same time share only if equal."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()
