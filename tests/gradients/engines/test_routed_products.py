"""Gradients of experts from the pairs of tokens and experts, against dense gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradstats.gradients.engines import experts as routed_products
from gradstats.gradients.engines.experts import RoutedProducts
from gradstats.gradients.engines.reduction import Reduction, reduce_gradients
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch

BATCH, EXPERTS, INPUTS, OUTPUTS = 3, 5, 6, 4


def routed(n_pairs, transposed, seed=0):
    """Random pairs, of which expert 0 gets half and the last expert none."""
    rng = np.random.default_rng(seed)
    experts = np.sort(np.where(rng.random(n_pairs) < 0.5, 0, rng.integers(0, EXPERTS - 1, size=n_pairs)))
    owners, places = rng.integers(0, BATCH, size=n_pairs), rng.integers(0, 9, size=n_pairs)
    inputs, gradients = rng.normal(size=(9, INPUTS)), rng.normal(size=(n_pairs, OUTPUTS))
    tensors = (torch.from_numpy(one) for one in (owners, experts, inputs, places, gradients))
    return RoutedProducts(*tensors, transposed)


def dense(term):
    shape = (INPUTS, OUTPUTS) if term.transposed else (OUTPUTS, INPUTS)
    total = torch.zeros(BATCH, EXPERTS, *shape, dtype=torch.float64)
    for owner, expert, place, gradient in zip(term.owners, term.experts, term.places, term.gradients, strict=True):
        left, right = (term.inputs[place], gradient) if term.transposed else (gradient, term.inputs[place])
        total[owner, expert] += torch.outer(left, right)
    return total


@pytest.mark.parametrize("sketch", [None, CountSketch(16, 0)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("n_pairs", "elements"), [(1, 2**22), (40, 2**22), (400, 2**22), (400, 64)])
def test_norms_and_sketches_equal_those_of_the_dense_gradient(sketch, transposed, n_pairs, elements, monkeypatch):
    monkeypatch.setattr(routed_products, "_ELEMENTS", elements)
    terms = [routed(n_pairs, transposed), routed(7, transposed, seed=1)]
    expected = dense(terms[0]) + dense(terms[1])
    selection = ParameterSelection({"w": expected[0]}, ("all",), {"w": 0})
    reduction = Reduction(selection, sketch, BATCH, torch.float64, torch.device("cpu"))
    RoutedProducts.join(terms).add_to(reduction, "w")
    norms, sketches = reduction.result()
    exact, exact_sketches = reduce_gradients({"w": expected}, selection, sketch)
    np.testing.assert_allclose(norms, exact, rtol=1e-12)
    if sketch is not None:
        np.testing.assert_allclose(sketches, exact_sketches, rtol=1e-11, atol=1e-12)


def test_a_gradient_that_is_not_finite_stays_in_its_sequence():
    term = routed(60, False)
    term.gradients[term.owners == 1] = torch.nan
    selection = ParameterSelection({"w": torch.zeros(EXPERTS, OUTPUTS, INPUTS)}, ("all",), {"w": 0})
    reduction = Reduction(selection, CountSketch(16, 0), BATCH, torch.float64, torch.device("cpu"))
    term.add_to(reduction, "w")
    norms, sketches = reduction.result()
    assert np.isfinite(norms[:, 0]).tolist() == [True, False, True]
    assert np.isfinite(sketches).all(axis=1).tolist() == [True, False, True]
