"""Terms of single layers reduced during a backward pass, against dense gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradstats.gradients.engines import layers as layer_reduction
from gradstats.gradients.engines.layers import EmbeddingLayer, EmbeddingRows, LayerReduction, LinearLayer, Uses
from gradstats.gradients.engines.reduction import OuterProducts, Reduction, reduce_gradients
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch

ROWS, COLUMNS, BATCH, TIME = 11, 6, 2, 5


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reduction_of(name, shape, sketch):
    selection = ParameterSelection({name: torch.zeros(shape)}, ("all",), {name: 0})
    return selection, Reduction(selection, sketch, BATCH, torch.float64, torch.device("cpu"))


def assert_reduced(reduction, dense, name, selection, sketch):
    norms, sketches = reduction.result()
    expected, expected_sketches = reduce_gradients({name: dense}, selection, sketch)
    np.testing.assert_allclose(norms, expected, rtol=1e-12)
    if sketch is not None:
        np.testing.assert_allclose(sketches, expected_sketches, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("sketch", [None, CountSketch(16, 0)])
@pytest.mark.parametrize("head_uses", [1, 2])
def test_a_head_tied_to_the_embedding_is_one_gradient(sketch, head_uses):
    selection, reduction = reduction_of("w", (ROWS, COLUMNS), sketch)
    ids = torch.tensor([[3, 3, 0, 10, 3], [1, 2, 2, 1, 9]])
    inputs, gradients, rows = random(BATCH, TIME, COLUMNS), random(BATCH, TIME, ROWS, seed=1), random(2, 5, 6, seed=2)
    dense = head_uses * torch.einsum("btr,btc->brc", gradients, inputs)
    for row in range(BATCH):
        dense[row].index_add_(0, ids[row], rows[row])
    uses = Uses()
    uses.count(EmbeddingLayer("embed", torch.nn.Embedding(ROWS, COLUMNS), {"weight": "w"}), ids)
    for _ in range(head_uses):
        uses.count(LinearLayer("head", torch.nn.Linear(COLUMNS, ROWS, bias=False), {"weight": "w"}), inputs)
    layers = LayerReduction(reduction, uses)
    head = OuterProducts(inputs, gradients)
    # Rows that are complete between two terms of the head wait for the second.
    for term in [head, EmbeddingRows(ids, rows), *[head] * (head_uses - 1)]:
        layers.add("w", term)
    assert_reduced(reduction, dense, "w", selection, sketch)


def test_a_weight_used_twice_is_reduced_when_both_terms_are_there():
    selection, reduction = reduction_of("w", (ROWS, COLUMNS), None)
    layer = LinearLayer("up", torch.nn.Linear(COLUMNS, ROWS, bias=False), {"weight": "w"})
    uses, terms, dense = Uses(), [], torch.zeros(BATCH, ROWS, COLUMNS, dtype=torch.float64)
    for use in range(2):
        inputs, gradients = random(BATCH, TIME, COLUMNS, seed=use), random(BATCH, TIME, ROWS, seed=2 + use)
        uses.count(layer, inputs)
        terms.append(OuterProducts(inputs, gradients))
        dense += torch.einsum("btr,btc->brc", gradients, inputs)
    layers = LayerReduction(reduction, uses)
    layers.add("w", terms[0])
    assert reduction.result()[0].max() == 0
    layers.add("w", terms[1])
    assert_reduced(reduction, dense, "w", selection, None)


def test_what_a_call_without_influence_leaves_out_is_reduced_at_the_end():
    selection, reduction = reduction_of("w", (ROWS, COLUMNS), None)
    layer = LinearLayer("up", torch.nn.Linear(COLUMNS, ROWS, bias=False), {"weight": "w"})
    inputs, gradients, uses = random(BATCH, TIME, COLUMNS), random(BATCH, TIME, ROWS, seed=1), Uses()
    uses.count(layer, inputs)
    uses.count(layer, inputs)
    layers = LayerReduction(reduction, uses)
    layers.add("w", OuterProducts(inputs, gradients))
    assert reduction.result()[0].max() == 0
    layers.finish()
    assert_reduced(reduction, torch.einsum("btr,btc->brc", gradients, inputs), "w", selection, None)


def test_layers_with_the_same_input_share_its_gram_matrix(monkeypatch):
    inputs, computed = random(BATCH, 4, 512), []
    strips = layer_reduction.gram_strips
    monkeypatch.setattr(
        layer_reduction, "gram_strips", lambda values, dtype: computed.append(values) or strips(values, dtype)
    )
    names = ("q", "k", "v")
    selection = ParameterSelection({name: torch.zeros(512, 512) for name in names}, names, {"q": 0, "k": 1, "v": 2})
    reduction, uses = Reduction(selection, None, BATCH, torch.float64, torch.device("cpu")), Uses()
    for name in names:
        uses.count(LinearLayer(name, torch.nn.Linear(512, 512, bias=False), {"weight": name}), inputs)
    layers = LayerReduction(reduction, uses)
    gradients = {name: random(BATCH, 4, 512, seed=number) for number, name in enumerate(names, start=1)}
    for name in names:
        layers.add(name, OuterProducts(inputs, gradients[name]))
    dense = {name: torch.einsum("btr,btc->brc", values, inputs) for name, values in gradients.items()}
    np.testing.assert_allclose(reduction.result()[0], reduce_gradients(dense, selection, None)[0], rtol=1e-12)
    assert sum(values is inputs or torch.equal(values, inputs) for values in computed) == 1
    assert len(computed) == 4
