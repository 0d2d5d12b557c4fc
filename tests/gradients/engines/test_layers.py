"""Terms of single layers reduced during a backward pass, against dense gradients."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_exact, oracle
from torch import nn
from torch.nn import functional

import gradstats.gradients as gradients
from gradstats.gradients.engines.layers import (
    KINDS,
    BroadcastLayer,
    CallCounts,
    EmbeddingLayer,
    EmbeddingRows,
    LayerReduction,
    LinearLayer,
    PerSequenceParameters,
    broadcasts,
    may_be_linear,
)
from gradstats.gradients.engines.recomputed import Recomputation
from gradstats.gradients.engines.reduction import OuterProducts, Reduction, reduce_gradients
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch


class Gate(nn.Module):
    """A module with the parameters of a linear map."""

    def __init__(self, use=lambda gate, hidden: functional.linear(hidden, gate.weight, gate.bias)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24, 24, dtype=torch.float64))
        self.bias = nn.Parameter(torch.rand(24, dtype=torch.float64))
        self.use = use

    def forward(self, hidden):
        return hidden + self.use(self, hidden).softmax(dim=-1)


def single(gate, hidden):
    return functional.linear(hidden.float(), gate.weight.type(torch.float32), bias=gate.bias.to(torch.float32)).double()


USES = {
    "plainly": (lambda gate, hidden: functional.linear(hidden, gate.weight, gate.bias), True),
    "cast": (single, True),
    "twice": (
        lambda gate, x: functional.linear(functional.linear(x, gate.weight, gate.bias), gate.weight, gate.bias),
        True,
    ),
    # what is not computed from a tensor is no use of it
    "its dtype and length": (
        lambda gate, x: functional.linear(x.to(gate.weight.dtype), gate.weight, gate.bias) * len(gate.weight),
        True,
    ),
    "bias apart": (lambda gate, hidden: functional.linear(hidden, gate.weight) + gate.bias, False),
    "normalised": (lambda gate, hidden: functional.linear(hidden, gate.weight / gate.weight.norm(), gate.bias), False),
    "as an input": (lambda gate, hidden: hidden @ functional.linear(gate.weight, gate.weight, gate.bias), False),
}


def model_with(gate) -> nn.Module:
    model = tiny_model("llama")
    model.model.layers[0].mlp = gate
    return model


@pytest.mark.parametrize("use", USES)
def test_every_use_equals_autograd_and_only_others_are_run_again(use, monkeypatch):
    how, is_linear = USES[use]
    recorded = []
    record = Recomputation.record
    monkeypatch.setattr(Recomputation, "record", lambda *args: recorded.append(args) or record(*args))
    gate = Gate(how)
    assert may_be_linear(gate)
    assert_exact(model_with(gate), ragged_rollouts(4))
    assert bool(recorded) != is_linear
    assert "forward" not in vars(gate)


def test_a_module_that_changes_its_mind_is_refused(rollouts):
    calls = []

    def use(gate, hidden):
        calls.append(hidden)
        weight = gate.weight if len(calls) % 2 else gate.weight * 1.0
        return functional.linear(hidden, weight, gate.bias)

    model = model_with(Gate(use))
    model.model.layers[1].mlp = model.model.layers[0].mlp
    with pytest.raises(gradients.UnsupportedModuleError, match=r"\(Gate\), which uses its weight in another way"):
        gradients.measure(model, rollouts, engine="ghost", progress=False)


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
    uses = CallCounts()
    uses.count(EmbeddingLayer("embed", torch.nn.Embedding(ROWS, COLUMNS), {"weight": "w"}), ids)
    for _ in range(head_uses):
        uses.count(LinearLayer("head", torch.nn.Linear(COLUMNS, ROWS, bias=False), {"weight": "w"}), inputs)
    layers = LayerReduction(reduction, uses)
    head = OuterProducts(inputs, gradients)
    # Rows that are complete between two terms of the head wait for the second.
    for term in [head, EmbeddingRows(ids, rows), *[head] * (head_uses - 1)]:
        layers.add("w", term)
    assert_reduced(reduction, dense, "w", selection, sketch)


def test_what_a_call_without_influence_leaves_out_is_reduced_at_the_end():
    selection, reduction = reduction_of("w", (ROWS, COLUMNS), None)
    layer = LinearLayer("up", torch.nn.Linear(COLUMNS, ROWS, bias=False), {"weight": "w"})
    inputs, gradients, uses = random(BATCH, TIME, COLUMNS), random(BATCH, TIME, ROWS, seed=1), CallCounts()
    uses.count(layer, inputs)
    uses.count(layer, inputs)
    layers = LayerReduction(reduction, uses)
    layers.add("w", OuterProducts(inputs, gradients))
    assert reduction.result()[0].max() == 0
    layers.finish()
    assert_reduced(reduction, torch.einsum("btr,btc->brc", gradients, inputs), "w", selection, None)


class ScaledEmbedding(nn.Embedding):
    embed_scale = 3.0

    def forward(self, ids):
        return super().forward(ids) * self.embed_scale


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 4), (3, 5, 6)),
        (nn.Linear(6, 4, bias=False), (3, 2, 5, 6)),
        (nn.LayerNorm(6), (3, 5, 6)),
        (nn.LayerNorm(6, bias=False), (3, 5, 6)),
        (nn.LayerNorm((2, 6)), (3, 5, 2, 6)),
        (nn.RMSNorm(6), (3, 5, 4, 6)),
        (nn.Embedding(9, 4, padding_idx=2), None),
        (ScaledEmbedding(9, 4), None),
    ],
)
def test_terms_of_single_layers(module, shape):
    torch.manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    inputs = torch.randint(0, 9, (3, 5)) if shape is None else torch.randn(shape, dtype=torch.float64)
    output = module(inputs)
    gradient = torch.randn_like(output)
    kind = next(kind for kind in KINDS if kind.handles(module))
    layer = kind("somewhere", module, {name: name for name, _ in module.named_parameters()})
    assert dict(layer.term_kinds()).keys() == dict(module.named_parameters()).keys()
    for name, term in layer.terms(inputs, gradient.detach()):
        if isinstance(term, OuterProducts):
            found = torch.einsum("btr,btc->brc", term.left, term.right)
        elif isinstance(term, EmbeddingRows):
            found = torch.zeros(3, *module.weight.shape, dtype=torch.float64)
            for row in range(3):
                found[row].index_add_(0, term.ids[row], term.values[row])
        else:
            found = term
        for row in range(3):
            (expected,) = torch.autograd.grad(output[row], dict(module.named_parameters())[name], gradient[row], True)
            torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize(
    "module",
    [
        nn.Embedding(9, 4, max_norm=1.0),
        nn.Embedding(9, 4, scale_grad_by_freq=True),
        nn.Bilinear(3, 3, 2),
        nn.BatchNorm1d(3),
    ],
)
def test_layers_that_compute_something_else_are_not_taken_for_known_ones(module):
    assert not any(kind.handles(module) for kind in KINDS)


def test_sequences_that_cannot_be_told_apart_are_refused():
    layer = next(kind for kind in KINDS if kind.handles(nn.Linear(2, 2)))("experts.3.up", nn.Linear(2, 2), {})
    with pytest.raises(gradients.UnsupportedModuleError, match=r"sequences in experts\.3\.up \(Linear\), .* \(9, 2\)"):
        layer.per_token(torch.zeros(9, 2), 3, (5,))
    with pytest.raises(gradients.UnsupportedModuleError, match=r"cannot distinguish sequences in norm"):
        BroadcastLayer("norm", nn.Identity(), {}).stand_in(torch.zeros(9, 2), 3, (5,))


def times(hidden, scale):
    return hidden * scale


def outer(hidden, scale):
    return hidden @ torch.outer(scale, scale)


def over_time(hidden, scale):
    """Fits a vector for each sequence, but gives each the vectors of all."""
    return hidden * scale.reshape(-1, 24).mean(dim=0)


def holding(use) -> nn.Module:
    """A model whose MLPs read the vector of a module beside them, which is never called."""
    model = tiny_model("llama")
    holder = model.model.holder = nn.Module()
    holder.scale = nn.Parameter(torch.rand(24, dtype=torch.float64) + 0.5)
    for layer in model.model.layers:
        layer.mlp.forward = lambda hidden, own=layer.mlp.forward: use(own(hidden), holder.scale)
    return model


@pytest.mark.parametrize(("use", "fits"), [(times, True), (outer, False), (over_time, False)])
def test_stand_ins_are_tried_with_vectors_that_differ_between_sequences(use, fits):
    model = holding(use)
    own = model.model.holder.scale
    one = PerSequenceParameters("model.holder", model.model.holder, {"scale": "model.holder.scale"})
    assert one.are_vectors
    assert broadcasts(model, [one], torch.arange(35).view(5, 7)) == fits
    assert model.model.holder.scale is own


def test_a_vector_that_every_layer_reads_equals_autograd():
    model, rollouts = holding(times), ragged_rollouts(4)
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=64, progress=False)
    for name, values in oracle(model, rollouts).items():
        np.testing.assert_allclose(measured.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)
    assert (measured.sq_norms_by_block["model.holder.scale"] > 0).all()


def test_a_vector_that_is_used_otherwise_is_named(rollouts):
    message = r"cannot differentiate model\.holder \(Module\), whose parameters another module reads and which owns"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(holding(outer), rollouts, engine="ghost", progress=False)
