"""Modules of no known kind in the ghost engine: experts, routers, state-space layers, parameters read directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, ragged_rollouts, tiny_model
from gradient_models import oracle, random_weightings, randomised, with_own_parameter
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.loop import loop_engine
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
QWEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 1}
DEEPSEEK = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 8,
}
MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": QWEN | {"shared_expert_intermediate_size": 12},
    "qwen3_moe": QWEN,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": DEEPSEEK,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
MAMBA = {"state_size": 4, "conv_kernel": 3, "expand": 2, "time_step_rank": 3}


def small_model(architecture: str, options: dict, experts: str | None = None) -> nn.Module:
    """A random model of two layers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = randomised(AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(SMALL | options))))
    if experts is not None:
        model.set_experts_implementation(experts)
    return model


def assert_exact(model, rollouts, **options):
    """Norms of every parameter against autograd, and sketches against the loop."""
    expected = oracle(model, rollouts)
    common = {"blocks": "parameter", "sketch_dim": 128, "progress": False, **options}
    measured = gradients.measure(model, rollouts, engine="ghost", **common)
    loop = gradients.measure(model, rollouts, engine="loop", **common)
    for name, values in measured.sq_norms_by_block.items():
        # Softmax of routers and norms compute in float32 inside.
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(measured.sketches, loop.sketches, rtol=1e-4, atol=1e-6)
    return measured, loop


@pytest.mark.parametrize("experts", ["eager", "batched_mm"])
@pytest.mark.parametrize("architecture", MIXTURES)
def test_mixtures_of_experts_equal_autograd(architecture, experts):
    model = small_model(architecture, MIXTURES[architecture], experts)
    measured, _ = assert_exact(model, ragged_rollouts(4, masked=True))
    assert set(measured.sq_norms_by_block) == {name for name, _ in model.named_parameters()}


def test_auto_takes_ghost_for_a_mixture_and_weightings_share_the_forward_pass(rollouts):
    model = small_model("qwen3_moe", QWEN, "eager")
    weightings = random_weightings(rollouts)
    found, loop = (
        gradients.measure(model, rollouts, engine=engine, sketch_dim=64, token_weights=weightings, progress=False)
        for engine in ("auto", "loop")
    )
    assert found.metadata["engine"] == "ghost"
    for name in weightings:
        np.testing.assert_allclose(found.weighted[name].sq_norms, loop.weighted[name].sq_norms, rtol=1e-5)
        np.testing.assert_allclose(found.weighted[name].sketches, loop.weighted[name].sketches, rtol=1e-4, atol=1e-6)


def test_state_space_layers_equal_autograd():
    """The scan computes in float32 in a model of float64 as well, so that only its norms and sketches are compared."""
    model, rollouts = small_model("mamba", MAMBA), ragged_rollouts(4)
    selection, sketch = gradients.select_parameters(model, blocks="parameter"), CountSketch(128)
    chunk = make_chunk(rollouts, range(4), torch.device("cpu"), torch.float64)
    found = ghost_engine(Policy(model), chunk, selection, sketch)
    for place, (name, values) in enumerate(oracle(model, rollouts).items()):
        np.testing.assert_allclose(found.sq_norms_by_block[0][:, place], values, rtol=1e-4, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(
        found.sketches, loop_engine(Policy(model), chunk, selection, sketch).sketches, rtol=1e-3, atol=1e-5
    )
    measured = gradients.measure(model.float(), rollouts, sketch_dim=None, progress=False)
    assert measured.metadata["engine"] == "ghost"


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
