"""Tiny models with the layer kinds that the shared fixtures lack."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from conftest import SIZES, VOCABULARY, tiny_model
from oracles.naive_estimators import sequence_gradients
from transformers import AutoModelForCausalLM, GemmaConfig, Qwen2MoeConfig, Qwen3Config

import gradstats.gradients as gradients
from gradstats.measurement.measurement import Measurement
from gradstats.policy.policy import Policy

ARCHITECTURES = [(name, tied) for name in ("qwen2", "qwen3", "llama", "gpt2", "gemma") for tied in (False, True)]

KINDS = {
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "gemma": (GemmaConfig, {"head_dim": 8}),
    "qwen2_moe": (
        Qwen2MoeConfig,
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
        | {"shared_expert_intermediate_size": 20},
    ),
}


def any_model(architecture: str, tied: bool = False, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """A random two-layer model in evaluation mode; padding is a separate token if the architecture has one."""
    if architecture in ("qwen2", "llama", "gpt2"):
        return tiny_model(architecture, tied, dtype)
    ids = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 5}
    kind, more = KINDS[architecture]
    config = kind(**SIZES, **ids, **more, tie_word_embeddings=tied)
    model = randomised(AutoModelForCausalLM.from_config(config), dtype)
    if architecture == "qwen2_moe":
        model.set_experts_implementation("eager")  # the default, grouped_mm, has no float64
    return model


def randomised(model: torch.nn.Module, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """The model in evaluation mode, with every trainable parameter random: zeros and ones hide mistakes."""
    model = model.to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return model.eval()


def lora_model(architecture: str = "qwen2", **options) -> torch.nn.Module:
    """A model with peft adapters on its attention layers, with random factors."""
    import peft

    config = peft.LoraConfig(r=3, task_type="CAUSAL_LM", lora_dropout=0.0, **options)
    return randomised(peft.get_peft_model(any_model(architecture), config))


def with_own_parameter(model: torch.nn.Module) -> torch.nn.Module:
    """The model with a parameter of its own, outside all layers."""
    model.shift = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    return model


def oracle(model, rollouts, temperature=1.0) -> dict[str, np.ndarray]:
    """Squared norms by parameter, from plain autograd."""
    found = sequence_gradients(model, rollouts, temperature)
    return {name: np.array([one[name].double().square().sum().item() for one in found]) for name in found[0]}


def assert_exact(model, rollouts, rtol=1e-5, temperature=1.0, sketch_dims=(128,), **options):
    """Norms of every parameter against autograd, sketches and quantities of tokens against the loop."""
    expected, policy = oracle(model, rollouts, temperature), Policy(model, temperature=temperature)
    common = {"blocks": "parameter", "progress": False, **options}
    loop = gradients.measure(policy, rollouts, engine="loop", sketch_dim=sketch_dims[-1], **common)
    for sketch_dim in sketch_dims:  # without sketches norms come from Gram matrices
        measured = gradients.measure(policy, rollouts, engine="ghost", sketch_dim=sketch_dim, **common)
        for name, values in measured.sq_norms_by_block.items():
            # Softmax of routers and norms compute in float32 inside.
            atol = 1e-12 if rtol > 1e-9 else 1e-18
            np.testing.assert_allclose(values, expected[name], rtol=rtol, atol=atol, err_msg=name)
    np.testing.assert_allclose(measured.sketches, loop.sketches, rtol=10 * rtol, atol=0.1 * rtol)
    for name in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms"):
        for values, of_loop in zip(getattr(measured, name), getattr(loop, name), strict=True):
            np.testing.assert_allclose(values, of_loop, rtol=rtol)
    return measured, loop


def assert_same(left: Measurement, right: Measurement) -> None:
    """The same rollouts, norms, sketches and statistics of tokens."""
    pd.testing.assert_frame_equal(left.rollouts.frame, right.rollouts.frame)
    assert list(left.weighted) == list(right.weighted)
    for one, other in zip((left, *left.weighted.values()), (right, *right.weighted.values()), strict=True):
        pd.testing.assert_frame_equal(one.sq_norms_by_block, other.sq_norms_by_block)
        np.testing.assert_allclose(one.sketches, other.sketches, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(one.gram(), other.gram(), rtol=1e-9, atol=1e-9)
    for name in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms", "ref_logprobs"):
        for one, other in zip(getattr(left, name), getattr(right, name), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def random_weightings(rollouts, n=2):
    """Named token weights, some of them zero or negative."""
    rng = np.random.default_rng(3)
    return {
        f"weights {number}": [
            rng.normal(size=len(tokens)) * (rng.random(len(tokens)) < 0.7)
            for tokens in rollouts.tokens("completion_tokens")
        ]
        for number in range(n)
    }


def changed(engine, change):
    """An engine whose norms, (weightings, batch, blocks), are changed."""

    def run(policy, chunk, selection, sketch):
        result = engine(policy, chunk, selection, sketch)
        return replace(result, sq_norms_by_parameter=change(result.sq_norms_by_parameter, chunk))

    return run
