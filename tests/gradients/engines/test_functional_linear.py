"""Modules that multiply by their weight themselves, and those that do something else with it."""

from __future__ import annotations

import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_exact
from torch import nn
from torch.nn import functional

import gradstats.gradients as gradients
from gradstats.gradients.engines.layers import WatchedParameters, may_be_linear
from gradstats.gradients.engines.recomputed import Recomputation


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


def test_what_is_not_computed_from_a_tensor_is_no_use_of_it():
    gate = Gate(lambda gate, x: functional.linear(x.to(gate.weight.dtype), gate.weight, gate.bias) * len(gate.weight))
    with WatchedParameters(gate) as watched:
        gate(torch.rand(2, 24, dtype=torch.float64))
    assert len(watched.products) == 1
    assert not watched.other_use


def test_a_module_that_changes_its_mind_is_refused(rollouts):
    calls = []

    def use(gate, hidden):
        calls.append(hidden)
        weight = gate.weight if len(calls) % 2 else gate.weight * 1.0
        return functional.linear(hidden, weight, gate.bias)

    model = model_with(Gate(use))
    model.model.layers[1].mlp = model.model.layers[0].mlp
    with pytest.raises(
        gradients.UnsupportedModuleError, match=r"0\.mlp \(Gate\), which uses its weight in another way"
    ):
        gradients.measure(model, rollouts, engine="ghost", progress=False)


def test_a_router_of_limited_capacity_is_refused(rollouts):
    """The first tokens of the batch take an expert's places, so that later sequences get another output alone."""

    def use(gate, hidden):
        scores = functional.linear(hidden, gate.weight, gate.bias).flatten(0, -2)
        chosen = functional.one_hot(scores.argmax(dim=-1), 24)
        return (scores * (chosen.cumsum(dim=0) <= 2)).view_as(hidden)

    message = r"layers\.0\.mlp \(Gate\), which gives a sequence another output alone than in the batch"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model_with(Gate(use)), rollouts, engine="ghost", progress=False)
