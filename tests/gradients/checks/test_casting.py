"""A policy in another dtype: its parameters are cast, its buffers and the policy itself are not."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from conftest import tiny_model

from gradstats.gradients.checks.self_check import with_dtype
from gradstats.policy.policy import Policy


def test_parameters_are_cast_in_a_copy_and_buffers_keep_their_dtype():
    policy = Policy(tiny_model("qwen2", dtype=torch.float32), temperature=0.7, name="tiny")
    frequencies = policy.model.model.rotary_emb.inv_freq
    cast = with_dtype(policy, torch.bfloat16)
    assert (cast.dtype, cast.temperature, cast.name) == (torch.bfloat16, 0.7, "tiny")
    parameters = dict(cast.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameters[name], parameter.bfloat16())
    assert torch.equal(cast.model.model.rotary_emb.inv_freq, frequencies)
    assert cast.model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_policy_of_that_dtype_is_not_copied():
    policy = Policy(tiny_model("gpt2"))
    assert with_dtype(policy, torch.float64) is policy


def test_tied_weights_remain_tied():
    model = with_dtype(Policy(tiny_model("qwen2", tied=True)), torch.float32).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def bound_to_its_class(forward):
    """A wrapper around a forward method that reaches the module through the method's class only."""

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        return forward(self, *args, **kwargs)

    return wrapper


@pytest.mark.parametrize("depth", [1, 2])
def test_a_copy_runs_its_own_weights_although_a_forward_method_is_bound_to_the_model(depth):
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    ids = torch.arange(5)[None]
    expected = with_dtype(policy, torch.float64).model(ids).logits
    layer = policy.model.model.layers[0].mlp
    for module in (policy.model, layer):
        for _ in range(depth):
            inner = functools.partial(module.forward)
            module.forward = functools.wraps(inner)(lambda *args, inner=inner, **kwargs: inner(*args, **kwargs))
    cast = with_dtype(policy, torch.float64)
    assert "forward" not in vars(cast.model)
    assert "forward" not in vars(cast.model.model.layers[0].mlp)
    assert torch.equal(cast.model(ids).logits, expected)
    assert "forward" in vars(policy.model)
    with torch.no_grad():
        for parameter in cast.model.parameters():
            parameter.zero_()
    assert not cast.model(ids).logits.any()


def test_a_forward_method_that_is_copied_with_the_model_stays():
    policy = Policy(tiny_model("gpt2", dtype=torch.float32))
    policy.model.forward = types.MethodType(bound_to_its_class(type(policy.model).forward), policy.model)
    cast = with_dtype(policy, torch.float64).model
    assert vars(cast)["forward"].__self__ is cast
    assert cast(torch.arange(5)[None]).logits.dtype == torch.float64


def test_a_forward_method_that_computes_something_else_is_refused():
    policy = Policy(tiny_model("gpt2", dtype=torch.float32), name="tiny")
    layer = policy.model.transformer.h[1].mlp
    forward = layer.forward
    layer.forward = lambda *args: 2 * forward(*args)
    with pytest.raises(ValueError, match=r"tiny cannot be copied .* bound to transformer\.h\.1\.mlp \(GPT2MLP\)"):
        with_dtype(policy, torch.float64)
