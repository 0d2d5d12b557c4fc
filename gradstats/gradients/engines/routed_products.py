r"""Squared norms and sketches of the gradients of a mixture's experts.

Of expert :math:`e`, a sequence's gradient is the sum over the tokens that the router sends to it,
:math:`\nabla W_e = \sum_{t \to e} g_{t,e} x_{t,e}^\top`: few outer products, for as many matrices as there are experts.
Its squared norm costs least in the Gram form of :mod:`~gradstats.gradients.engines.outer_products`, and the gradient
itself, which is much larger than all :math:`x` and :math:`g` together, is formed for sketches only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradstats.gradients.engines.outer_products import OuterProducts
from gradstats.gradients.engines.reduction import Reduction, sq_norms

# Elements of padded inputs and gradients that are reduced at a time.
_ELEMENTS = 2**22


@dataclass(frozen=True)
class RoutedProducts:
    """The gradient of the experts' weight for each sequence: outer products, each in the matrix of one expert.

    Attributes:
        owners: (pairs,), the sequence of each pair of a token and an expert.
        experts: (pairs,), its expert.
        inputs: (rows, inputs), from which the pairs take their inputs.
        places: (pairs,), the row of each pair in ``inputs``.
        gradients: (pairs, outputs), the gradients of the expert's outputs.
        transposed: False for a weight (experts, outputs, inputs), True for (experts, inputs, outputs).
    """

    owners: Tensor
    experts: Tensor
    inputs: Tensor
    places: Tensor
    gradients: Tensor
    transposed: bool = False

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
    """Pairs with the same key, sorted.

    Attributes:
        order: (pairs,), the pairs in the order of their keys.
        keys: (segments,), the key of each segment, ascending.
        begins: (segments,), the place of its first pair in ``order``.
        counts: (segments,), its number of pairs.
    """

    order: Tensor
    keys: Tensor
    begins: Tensor
    counts: Tensor

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
