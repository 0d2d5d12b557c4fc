"""A policy in another dtype: its parameters are cast, its buffers and the policy itself are not."""

from __future__ import annotations

import torch
from conftest import tiny_model

from gradstats.gradients.checks.casting import with_dtype
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
