"""Modules of no known kind in the ghost engine: state-space layers, parameters read directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_exact, oracle, small_model, with_own_parameter
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.checks.self_check import TOLERANCES

MAMBA = {"state_size": 4, "conv_kernel": 3, "expand": 2, "time_step_rank": 3}


def test_state_space_layers_whose_logits_are_float32_in_a_model_of_float64():
    """The self-check allows what the dtype of the logits allows."""
    model, rollouts = small_model("mamba", MAMBA), ragged_rollouts(4)
    expected = oracle(model, rollouts)
    measured = gradients.measure(model, rollouts, blocks="parameter", sketch_dim=128, progress=False)
    assert measured.metadata["engine"] == "ghost"
    assert measured.metadata["self_check"]["tolerance"] == TOLERANCES[torch.float32]
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-12, err_msg=name)


class Scaled(nn.Module):
    """A layer whose parameters are read in its own forward method, one of them inside a module that is not called."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.rand(24, dtype=torch.float64) + 0.5)
        self.uncalled = nn.Linear(24, 24, dtype=torch.float64)

    def forward(self, hidden):
        first = self.inner(hidden) * self.scale
        return first + first.cumsum(dim=1) @ self.uncalled.weight


def model_with(change) -> nn.Module:
    model = tiny_model("llama")
    change(model)
    return model


def test_parameters_that_a_module_reads_itself():
    def change(model):
        model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
        model.model.layers[1].mlp = model.model.layers[0].mlp  # called twice

    model = model_with(change)
    measured, _ = assert_exact(model, ragged_rollouts(4))
    assert (measured.sq_norms_by_block["model.layers.0.mlp.scale"] > 0).all()
    assert not measured.sq_norms_by_block["model.layers.0.mlp.uncalled.bias"].any()


class OverTheBatch(Scaled):
    """A layer in which sequences interact."""

    def forward(self, hidden):
        return super().forward(hidden) / hidden.square().mean()


def in_the_first_layer(kind):
    def change(model):
        model.model.layers[0].mlp = kind(model.model.layers[0].mlp)

    return change


def shared_parameter(model):
    in_the_first_layer(Scaled)(model)
    model.model.layers[0].mlp.uncalled.weight = model.model.layers[1].self_attn.q_proj.weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            in_the_first_layer(OverTheBatch),
            r"layers\.0\.mlp \(OverTheBatch\), which gives a sequence another output alone",
        ),
        (
            with_own_parameter,
            r"does not know the module the model itself .*, which owns shift, and contains the output emb",
        ),
        (
            shared_parameter,
            r"module model\.layers\.0\.mlp \(Scaled\), .*, and shares a parameter with .*1\.self_attn\.q",
        ),
    ],
)
def test_modules_that_cannot_be_run_alone_are_named(change, message, rollouts):
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model_with(change), rollouts, engine="ghost", progress=False)
