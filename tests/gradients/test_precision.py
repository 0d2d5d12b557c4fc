"""Mixed precision around a model is switched off, or refused in one sentence."""

from __future__ import annotations

from functools import wraps
from types import MethodType

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.attention import own_precision, refusing_lower_precision
from gradstats.policy.policy import Policy


def mixed(model: nn.Module) -> nn.Module:
    """Bind a forward method that computes under autocast and returns float32, as a trainer's wrapper does."""
    forward = type(model).forward

    @wraps(forward)
    def under_autocast(self, *args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            output = forward(self, *args, **kwargs)
        output["logits"] = output["logits"].float()
        return output

    model.forward = MethodType(under_autocast, model)
    return model


def narrowed(model: nn.Module) -> nn.Module:
    """Replace the parameters of a layer by narrower ones for the time of its forward pass, as FSDP's policy does."""
    layer = model.model.layers[1].mlp.up_proj
    own = {}

    def before(module, inputs):
        own.update(module._parameters)
        module._parameters["weight"] = nn.Parameter(own["weight"].detach().bfloat16())
        return (inputs[0].bfloat16(),)

    def after(module, _inputs, output):
        module._parameters.update(own)
        return output.float()

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)
    return model


def inner_autocast(model: nn.Module) -> nn.Module:
    """Bind a forward method to one linear layer alone."""
    layer = model.model.layers[0].mlp.up_proj
    forward = torch.autocast("cpu", torch.bfloat16)(type(layer).forward)
    layer.forward = MethodType(forward, layer)
    return model


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            mixed,
            r"model \(LlamaModel\) computes in bfloat16 under autocast, although .* are float32: measure the model",
        ),
        (narrowed, r"up_proj \(Linear\) computes in bfloat16 with its weight replaced by a narrower one"),
        (inner_autocast, r"layers\.0\.mlp\.up_proj \(Linear\) computes in bfloat16 inside a wrapper"),
    ],
)
def test_wrappers_that_lower_the_precision_are_refused(wrap, message, rollouts):
    model = wrap(tiny_model("llama", dtype=torch.float32))
    with pytest.raises(ValueError, match=message):
        gradients.measure(model, rollouts, progress=False)
    plain = tiny_model("llama", dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        gradients.measure(plain, rollouts, reference_policy=model, engine="loop", sketch_dim=None, progress=False)
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    assert sum(hooks) == (2 if wrap is narrowed else 0)


def test_the_wrapper_of_accelerate_is_refused(rollouts):
    accelerate = pytest.importorskip("accelerate")
    # Another test of this process may have left its state, in another precision.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare_model(
        tiny_model("llama", dtype=torch.float32), evaluation_mode=True
    )
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ValueError, match=r"computes in bfloat16 under autocast"):
        gradients.measure(model, rollouts, progress=False)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_autocast_of_the_caller_is_left_for_the_measurement(engine):
    rollouts = ragged_rollouts(3)
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    policy.model.set_attn_implementation("eager")
    options = {"engine": engine, "sketch_dim": 64, "token_probes": 2, "token_exact": 1, "progress": False}
    options["reference_policy"] = policy
    expected = gradients.measure(policy, rollouts, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients.measure(policy, rollouts, **options)
        assert torch.is_autocast_enabled("cpu")
    assert np.array_equal(found.sq_norms, expected.sq_norms)
    assert np.array_equal(found.sketches, expected.sketches)
    for name in ("logprobs", "ref_logprobs", "token_projections", "heavy_sq_norms"):
        for one, other in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_forward_pass_in_the_dtype_of_the_parameters_is_accepted():
    for dtype in (torch.float64, torch.bfloat16):
        policy = Policy(tiny_model("qwen2", dtype=dtype))
        with torch.autocast("cpu", torch.bfloat16), refusing_lower_precision(policy), own_precision(policy):
            policy.model(torch.arange(4)[None])
