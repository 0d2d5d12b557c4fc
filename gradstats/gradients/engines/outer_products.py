r"""Squared norms and sketches of sums of outer products, the gradients of linear layers.

For a linear layer :math:`z_t = W x_t` with gradients :math:`g_t` of its outputs, each sequence has

.. math:: \nabla W = \sum_t g_t x_t^\top, \qquad
    \lVert \nabla W \rVert_F^2 = \sum_{t,s} \langle g_t, g_s\rangle \langle x_t, x_s\rangle .

The right-hand side, the *Gram form*, costs :math:`T^2 (p + d)` multiplications instead of the :math:`T p d` of the
*product form*, which computes :math:`\nabla W` and its norm. Gram matrices are symmetric, so half of
each is computed.

Goodfellow, "Efficient per-example gradient computations" (2015); Li et al., "Large language models can be strong
differentially private learners" (2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradstats.gradients.engines.reduction import sq_norms

# Gram matrices are computed in strips of this many rows, each up to the diagonal.
_STRIP = 128
# Inner products are accumulated over this many features at a time, which keeps the features in the cache.
_FEATURES = 2048
# An elementwise operation costs about as much as this many multiplications within a matrix product.
_ELEMENT_COST = 32
# Elements of a product that are computed at a time.
_PRODUCT_ELEMENTS = 2**21


@dataclass(frozen=True)
class OuterProducts:
    r"""The gradient of a linear layer's weight for each sequence, a sum over time of outer products.

    Attributes:
        inputs: (batch, time, inputs), the layer's inputs.
        gradients: (batch, time, outputs), the gradients of its outputs.
        transposed: False for a weight (outputs, inputs), True for (inputs, outputs).
    """

    inputs: Tensor
    gradients: Tensor
    transposed: bool = False

    @classmethod
    def join(cls, terms: list[OuterProducts]) -> OuterProducts:
        """Return the sum of the terms of a weight that is used several times: their times are concatenated."""
        if len(terms) == 1:
            return terms[0]
        inputs = torch.cat([term.inputs for term in terms], dim=1)
        return cls(inputs, torch.cat([term.gradients for term in terms], dim=1), terms[0].transposed)

    def without_idle_ends(self) -> OuterProducts:
        """Return the same sum without the first and last times at which all gradients are zero."""
        if self.gradients[:, 0].any() and self.gradients[:, -1].any():
            return self  # the usual case, without a pass over all gradients
        # The largest magnitude, since `any` takes four times as long; NaN counts as busy.
        busy = (self.gradients.abs().amax(dim=(0, 2)) != 0).nonzero()[:, 0]
        if not len(busy) or len(busy) == self.gradients.shape[1]:
            return self
        span = slice(int(busy[0]), int(busy[-1]) + 1)
        return OuterProducts(self.inputs[:, span], self.gradients[:, span], self.transposed)

    @property
    def left(self) -> Tensor:
        """(batch, time, rows): the factor along the weight's rows."""
        return self.inputs if self.transposed else self.gradients

    @property
    def right(self) -> Tensor:
        """(batch, time, columns): the factor along the weight's columns."""
        return self.gradients if self.transposed else self.inputs

    @property
    def size(self) -> int:
        """Number of the weight's coordinates."""
        return self.left.shape[2] * self.right.shape[2]

    def prefers_gram(self, shared: int = 1) -> bool:
        """Return whether the Gram form costs less than the product form.

        Args:
            shared: how many layers use the Gram matrix of this one's inputs.
        """
        time, inputs, outputs = self.inputs.shape[1], self.inputs.shape[2], self.gradients.shape[2]
        strip = min(time, _STRIP)
        gram = time * (time + strip) / 2 * (inputs / shared + outputs + _ELEMENT_COST)
        return gram < (time + _ELEMENT_COST) * inputs * outputs

    def sq_norms(self, dtype: torch.dtype) -> Tensor:
        """Return (batch,) squared norms of the gradients in float64, in the form that costs less."""
        if self.prefers_gram():
            return contract(gram_strips(self.gradients, dtype), gram_strips(self.inputs, dtype))
        total = torch.zeros(len(self.inputs), dtype=torch.float64, device=self.inputs.device)
        for _, product in self.products(dtype):
            total += sq_norms(product.flatten(start_dim=1))
        return total

    def products(self, dtype: torch.dtype, preconditioner: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield a few rows of the gradient at a time: the index of the first, and (batch, rows, columns).

        Args:
            dtype: dtype of the products.
            preconditioner: (all rows, columns), by which they are multiplied; None for none.
        """
        batch, _, rows = self.left.shape
        right = self.right.to(dtype)
        step = max(1, _PRODUCT_ELEMENTS // (batch * right.shape[2]))
        buffer = torch.empty(batch, min(step, rows), right.shape[2], dtype=dtype, device=right.device)
        for first in range(0, rows, step):
            left = self.left[:, :, first : first + step].to(dtype).transpose(1, 2)
            # One buffer for all slices: allocating memory costs more than the arithmetic of a slice.
            out = buffer if left.shape[1] == buffer.shape[1] else None
            product = torch.bmm(left, right, out=out)
            yield first, product if preconditioner is None else product.mul_(preconditioner[first : first + step])


def gram_strips(vectors: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Yield the Gram matrix of (batch, time, features) in strips (batch, rows, columns up to the diagonal)."""
    batch, time, features = vectors.shape
    strips = []
    for first in range(0, time, _STRIP):
        last = min(first + _STRIP, time)
        strip = torch.zeros(batch, last - first, last, dtype=dtype, device=vectors.device)
        for feature in range(0, features, _FEATURES):
            some = vectors[:, :last, feature : feature + _FEATURES].to(dtype)
            torch.baddbmm(strip, some[:, first:], some.transpose(1, 2), out=strip)
        strips.append(strip)
    return strips


def contract(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over all pairs of times of the product of two Gram matrices, (batch,); overwrites ``left``."""
    total = torch.zeros(len(left[0]), dtype=torch.float64, device=left[0].device)
    for first, second in zip(left, right, strict=True):
        square = first.shape[2] - first.shape[1]
        product = first.mul_(second)
        # Entries left of the diagonal square count twice, for themselves and their mirror images.
        total += 2 * product[:, :, :square].sum(dim=(1, 2)).double() + product[:, :, square:].sum(dim=(1, 2)).double()
    return total
