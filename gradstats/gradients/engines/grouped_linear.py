"""The linear maps of a mixture's experts, each applied to the rows of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
    if rows.is_cuda and aligned and rows.dtype != torch.float64:
        return functional.grouped_mm(rows, matrices, offs=counts.cumsum(0, dtype=torch.int32))
    found = rows.new_empty(len(rows), matrices.shape[2])
    first = 0
    for group, count in enumerate(counts.tolist()):
        if count:
            torch.mm(rows[first : first + count], matrices[group], out=found[first : first + count])
        first += count
    return found
