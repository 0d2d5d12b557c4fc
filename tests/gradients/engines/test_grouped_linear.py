"""Groups of rows, each multiplied by a matrix of its own."""

from __future__ import annotations

import pytest
import torch

from gradstats.gradients.engines.experts import GroupedLinear


@pytest.mark.parametrize("transposed", [False, True])
def test_products_and_gradients_equal_those_row_by_row(transposed):
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([3, 0, 4])
    rows = torch.randn(7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    matrices = torch.randn(3, *((5, 2) if transposed else (2, 5)), dtype=torch.float64, generator=generator)
    of_row = matrices.repeat_interleave(counts, dim=0)
    expected = torch.einsum("ni,nio->no" if transposed else "ni,noi->no", rows, of_row)
    found = GroupedLinear.apply(rows, matrices, counts, transposed)
    torch.testing.assert_close(found, expected)
    start = torch.randn(7, 2, dtype=torch.float64, generator=generator)
    for left, right in zip(
        torch.autograd.grad(found, rows, start), torch.autograd.grad(expected, rows, start), strict=True
    ):
        torch.testing.assert_close(left, right)
