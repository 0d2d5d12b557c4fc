"""The ghost engine against plain autograd: architectures, layers, subsets, repeated modules, unsupported modules."""

from functools import partial

import gradient_models
import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import ARCHITECTURES, any_model, lora_model, oracle, with_own_parameter
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.engines.ghost import probed_layers
from gradstats.gradients.engines.layers import supported_layers
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.parameters import select_parameters
from gradstats.policy.policy import Policy

assert_exact = partial(gradient_models.assert_exact, rtol=1e-9, sketch_dims=(None, 256))
# peft asks transformers for an attribute that is about to be renamed.
PEFT_WARNINGS = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
def test_ghost_equals_autograd_for_every_parameter(architecture, tied):
    model = any_model(architecture, tied)
    measured, _ = assert_exact(model, ragged_rollouts(6, masked=True), temperature=0.7)
    assert set(measured.sq_norms_by_block) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("architecture", "params"),
    [
        *(("qwen2", one) for one in ("norm", "lm_head", "embed_tokens", "bias", r"layers\.1\.")),
        *(("qwen2", one) for one in (r"layers\.1\.mlp\.down", r"layers\.0\.self_attn\.q_proj\.weight")),
        *(("gpt2", one) for one in ("wpe", "wte", r"ln_1\.bias", r"c_attn\.(weight|bias)")),
        ("qwen2_moe", r"shared_expert|self_attn"),  # layers that run batch and time together
    ],
)
def test_subsets_of_parameters(architecture, params):
    assert_exact(any_model(architecture, architecture == "gpt2"), ragged_rollouts(4), params=params)


def test_a_module_used_twice():
    model = any_model("qwen3", tied=True)
    model.model.layers[1] = model.model.layers[0]
    measured, _ = assert_exact(model, ragged_rollouts(5))
    assert not any("layers.1" in name for name in measured.sq_norms_by_block)


def test_rows_of_the_padding_token_stay_out_of_the_embedding():
    model = any_model("llama")
    model.model.embed_tokens.padding_idx = 7
    rollouts = ragged_rollouts(6)
    assert any(7 in tokens for tokens in rollouts.tokens("completion_tokens"))
    assert_exact(model, rollouts)


@PEFT_WARNINGS
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_adapters_of_peft(architecture):
    pytest.importorskip("peft")
    targets = {"qwen2": ["q_proj", "down_proj"], "gpt2": ["c_attn"]}[architecture]
    model = lora_model(architecture, target_modules=targets, fan_in_fan_out=architecture == "gpt2")
    measured, _ = assert_exact(model, ragged_rollouts(5, masked=True))
    assert measured.metadata["n_parameters"] == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert all("lora_" in name for name in measured.sq_norms_by_block)


@PEFT_WARNINGS
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lora_model(target_modules=["q_proj"], use_dora=True), "cannot distinguish sequences in .*lora_A"),
        (
            lambda: with_own_parameter(any_model("qwen2_moe")),
            r"does not know the module the model itself \(Qwen2MoeForCausalLM\), which owns shift",
        ),
    ],
)
def test_modules_that_ghost_does_not_know_are_named(build, message):
    pytest.importorskip("peft")
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(build(), ragged_rollouts(3), engine="ghost", progress=False)


def test_the_model_is_left_as_it_was(rollouts):
    model = any_model("gemma", tied=True)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    before = {name: (id(tensor), tensor.requires_grad) for name, tensor in model.named_parameters()}
    gradients.measure(model, rollouts, engine="ghost", progress=False)

    def fails(*_):
        raise KeyError("in the middle of a forward pass")

    handle = model.model.layers[1].input_layernorm.register_forward_pre_hook(fails)
    chunk = make_chunk(rollouts, [0, 1], torch.device("cpu"), torch.float64)
    with pytest.raises(KeyError):
        gradients.ENGINES["ghost"](Policy(model), chunk, gradients.select_parameters(model), None)
    handle.remove()
    assert {name: (id(tensor), tensor.requires_grad) for name, tensor in model.named_parameters()} == before
    assert all(tensor.grad is None for tensor in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Reading(nn.Module):
    """An MLP that reads the weight of one of its linear layers instead of calling it."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.inner = mlp

    def forward(self, hidden):
        gate = nn.functional.silu(hidden @ self.inner.gate_proj.weight.T)
        return self.inner.down_proj(gate * self.inner.up_proj(hidden))


def reading() -> nn.Module:
    model = tiny_model("llama")
    model.model.layers[0].mlp = Reading(model.model.layers[0].mlp)
    return model


def test_the_module_around_is_run_again():
    """The MLP inside, whose layer is read, is not called; further kinds of modules: test_every_architecture.py."""
    model, rollouts = reading(), ragged_rollouts(4)
    others = probed_layers(model, select_parameters(model))[2]
    assert [other.path for other in others] == ["model.layers.0.mlp"]
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=None, progress=False)
    for name, values in oracle(model, rollouts).items():
        np.testing.assert_allclose(measured.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)


def test_a_model_is_probed_once_and_again_when_its_modules_change():
    model, calls = tiny_model("llama"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    selection = select_parameters(model)
    for _ in range(2):
        assert probed_layers(model, selection) == (*supported_layers(model, selection), [])
    assert len(calls) == 1
    model.model.layers[0].mlp = Reading(model.model.layers[0].mlp)
    probed_layers(model, select_parameters(model))
    assert len(calls) > 1
