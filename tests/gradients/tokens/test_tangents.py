"""Random directions: isotropic, of low rank for matrices, and the same wherever they are generated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradstats.gradients.tokens.projections import Tangents


def test_directions_are_isotropic():
    tangents = Tangents(0, 4000)
    drawn = tangents.dense("w", (3, 4), range(4000), torch.zeros((), dtype=torch.float64)).flatten(1).numpy()
    assert np.abs(drawn.T @ drawn / 4000 - np.eye(12)).max() < 5 * np.sqrt(2 / 4000)
    assert np.abs(drawn.mean(axis=0)).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("rank", [1, 4])
def test_directions_of_a_matrix_are_products_of_scaled_signs(rank):
    tangents, like = Tangents(7, 3, rank), torch.zeros((), dtype=torch.float64)
    pair = tangents.factors("w", (5, 6), range(3), like)
    assert pair.left.shape == (3, 5, rank)
    assert pair.right.shape == (3, 6, rank)
    np.testing.assert_allclose(pair.left.abs(), rank**-0.5)
    np.testing.assert_array_equal(pair.right.abs(), 1)
    dense = tangents.dense("w", (5, 6), range(3), like)
    np.testing.assert_allclose(dense, np.einsum("nir,njr->nij", pair.left, pair.right))
    assert (torch.linalg.matrix_rank(dense) <= rank).all()


def test_parameters_that_are_not_matrices_have_independent_signs():
    drawn = Tangents(0, 2).dense("bias", (2, 3, 4), range(2), torch.zeros((), dtype=torch.float32))
    assert drawn.shape == (2, 2, 3, 4)
    assert drawn.dtype == torch.float32
    np.testing.assert_array_equal(drawn.abs(), 1)
    assert not Tangents(0, 2).has_factors((2, 3, 4))


def test_a_direction_depends_on_seed_number_name_and_shape_alone():
    like = torch.zeros((), dtype=torch.float64)
    together = Tangents(0, 9).dense("w", (4, 5), [0, 3, 8], like)
    assert torch.equal(together[1:2], Tangents(0, 4).dense("w", (4, 5), [3], like))
    for other in (Tangents(1, 4).dense("w", (4, 5), [3], like), Tangents(0, 4).dense("v", (4, 5), [3], like)):
        assert not torch.equal(other, together[1:2])
    assert not torch.equal(Tangents(0, 4).dense("w", (5, 4), [3], like).flatten(), together[1].flatten())
