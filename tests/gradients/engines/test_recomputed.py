"""Modules of no known kind in the ghost engine: state-space layers, parameters read directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import small_model
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_exact, oracle, with_own_parameter
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.checks.self_check import TOLERANCES
from gradstats.gradients.engines.recomputed import refuse_interacting_tokens, rows_of
from gradstats.gradients.parameters import UnsupportedModuleError

BATCH, TIME = 3, 200


@pytest.mark.parametrize("shape", [(BATCH, TIME, 2), (BATCH * TIME, 2)])
def test_the_rows_of_a_sequence_with_separate_and_merged_axes(shape):
    values = torch.arange(BATCH * TIME * 2).view(shape)
    expected = torch.arange(TIME * 2, 2 * TIME * 2)
    assert torch.equal(rows_of(values, 1, BATCH, [TIME]).flatten(), expected)
    shared = torch.arange(5)
    assert rows_of(shared, 1, BATCH, [TIME]) is shared


def with_deviations(n, merged):
    """A module whose output deviates at the last tokens of a batch of several sequences."""

    def call(hidden):
        out = hidden.clone()
        rows = out.view(-1, 2)
        if len(rows) > TIME and n:
            rows[-n:] += 1.0
        return out, torch.zeros(len(rows), dtype=torch.long)

    hidden = torch.randn(BATCH, TIME, 2, generator=torch.Generator().manual_seed(0))
    return (hidden.flatten(0, 1) if merged else hidden), call


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("n", "passes"), [(0, True), (2, True), (3, False), (150, False)])
def test_more_than_a_few_tokens_are_refused(n, passes, merged):
    hidden, call = with_deviations(n, merged)

    def check():
        refuse_interacting_tokens("a.b", nn.Identity(), (hidden,), {}, call(hidden), BATCH, [TIME], call)

    if passes:
        check()
    else:
        with pytest.raises(UnsupportedModuleError, match=r"a\.b \(Identity\), which gives a sequence another output"):
            check()


def test_a_shape_that_depends_on_the_batch_is_refused():
    hidden = torch.zeros(BATCH, TIME, 2)

    def call(values):
        return values[:, : 10 * len(values)]

    with pytest.raises(UnsupportedModuleError, match="another output alone"):
        refuse_interacting_tokens("a", nn.Identity(), (hidden,), {}, call(hidden), BATCH, [TIME], call)


def test_one_sequence_has_none_to_interact_with():
    refuse_interacting_tokens("a", nn.Identity(), (), {}, None, 1, [TIME], lambda: pytest.fail("was called"))


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
        return super().forward(hidden) / hidden[:, :1].square().mean()


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
