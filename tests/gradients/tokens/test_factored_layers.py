"""Layers that move along thin factors, against the same directions written out as matrices."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from torch import nn
from torch.func import functional_call, jvp
from transformers.pytorch_utils import Conv1D

import gradstats.gradients as gradients
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.tokens.projections import FactoredLayers, Tangents

# torch scripts its forward derivatives when the first one is needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

TANGENTS = Tangents(0, 2, rank=3)


def factored(module):
    """A module of one weight with its layers, and the factors of one direction."""
    selection = ParameterSelection({"weight": module.weight}, ("all",), {"weight": 0})
    layers = FactoredLayers(module, selection, TANGENTS)
    return layers, TANGENTS.factors("weight", module.weight.shape, [1], torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("kind", ["linear", "transposed", "embedding"])
def test_the_derivative_along_the_factors_is_that_along_the_matrix(kind):
    torch.manual_seed(0)
    module = {
        "linear": lambda: nn.Linear(5, 4, dtype=torch.float64),
        "transposed": lambda: Conv1D(4, 5).double(),
        "embedding": lambda: nn.Embedding(7, 4, padding_idx=2, dtype=torch.float64),
    }[kind]()
    entered = torch.tensor([[2, 3, 6], [0, 2, 2]]) if kind == "embedding" else torch.randn(2, 3, 5).double()
    layers, factors = factored(module)
    matrix = (factors.left @ factors.right.transpose(1, 2))[0]
    if kind == "embedding":
        matrix[2] = 0  # the padding token's row has no gradient
    one = torch.ones((), dtype=torch.float64)

    def moved(epsilon):
        pair = type(factors)(factors.left[0], factors.right[0])
        with layers.moving({"weight": pair}, epsilon):
            return module(entered)

    value, derivative = jvp(moved, (0 * one,), (one,))
    expected, along = jvp(
        lambda weight: functional_call(module, {"weight": weight}, (entered,)), (module.weight.detach(),), (matrix,)
    )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(derivative, along)
    assert not module._forward_hooks


def test_weights_of_other_modules_are_left_to_be_written_out():
    model = tiny_model("gpt2", tied=True)
    selection = gradients.select_parameters(model, r"h\.0\.(ln_1|mlp\.c_fc)|wte")
    layers = FactoredLayers(model, selection, TANGENTS)
    # Biases and norms are vectors; the head is tied to the embedding, and both are known.
    assert layers.shapes == {"transformer.wte.weight": (41, 24), "transformer.h.0.mlp.c_fc.weight": (24, 96)}


def test_a_weight_that_an_unknown_module_shares_is_not_factored():
    class Scaled(nn.Linear):
        def forward(self, entered):
            return 2 * super().forward(entered)

    linear, scaled = nn.Linear(3, 3, bias=False), Scaled(3, 3, bias=False)
    scaled.weight = linear.weight
    selection = ParameterSelection({"0.weight": linear.weight}, ("all",), {"0.weight": 0})
    assert FactoredLayers(nn.Sequential(linear, scaled), selection, TANGENTS).shapes == {}
    assert FactoredLayers(nn.Sequential(linear), selection, TANGENTS).shapes == {"0.weight": (3, 3)}
