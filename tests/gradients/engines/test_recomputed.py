"""Modules of no known kind in the ghost engine: state-space layers, parameters read directly."""

from contextlib import nullcontext

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


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("n", "passes"), [(0, True), (2, True), (3, False), (150, False), (None, False)])
def test_more_than_a_few_tokens_that_deviate_in_a_batch_are_refused(n, passes, merged):
    """The last n tokens of a batch of several sequences, or, for None, tokens that only a batch has."""

    def call(hidden):
        rows = hidden.clone().view(-1, 2)
        if n is None:
            return hidden[:, : 10 * len(hidden)]
        if len(rows) > TIME and n:
            rows[-n:] += 1.0
        return rows.view_as(hidden), torch.zeros(len(rows), dtype=torch.long)

    hidden = torch.randn(BATCH, TIME, 2, generator=torch.Generator().manual_seed(0))
    hidden = hidden.flatten(0, 1) if merged and n is not None else hidden
    refused = pytest.raises(UnsupportedModuleError, match=r"a\.b \(Identity\), which gives a sequence another output")
    with nullcontext() if passes else refused:
        refuse_interacting_tokens("a.b", nn.Identity(), (hidden,), {}, call(hidden), BATCH, [TIME], call)


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


def test_parameters_that_a_module_reads_itself():
    model = tiny_model("llama")
    model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
    model.model.layers[1].mlp = model.model.layers[0].mlp  # called twice
    measured, _ = assert_exact(model, ragged_rollouts(4))
    assert (measured.sq_norms_by_block["model.layers.0.mlp.scale"] > 0).all()
    assert not measured.sq_norms_by_block["model.layers.0.mlp.uncalled.bias"].any()


def shared_parameter(model):
    model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
    model.model.layers[0].mlp.uncalled.weight = model.model.layers[1].self_attn.q_proj.weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_own_parameter, "the module the model itself .*, which owns shift, and contains the output emb"),
        (shared_parameter, r"model\.layers\.0\.mlp \(Scaled\), .*, and shares a parameter with .*1\.self_attn\.q"),
    ],
)
def test_modules_that_cannot_be_run_alone_are_named(change, message, rollouts):
    model = tiny_model("llama")
    change(model)
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, engine="ghost", progress=False)
