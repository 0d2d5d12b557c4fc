"""Every engine against plain autograd, over architectures, tied weights, ragged lengths and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import ARCHITECTURES, any_model, oracle

import gradstats.gradients as gradients
from gradstats.policy.policy import Policy
from gradstats.reference.autograd_loop import sequence_gradients


def oracle_sq_norms(model, rollouts, temperature=1.0):
    return sum(oracle(model, rollouts, temperature).values())


# Engine ghost over all architectures, parameter by parameter: test_ghost.py.
@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
def test_sq_norms_equal_autograd_in_float64(engine, architecture, tied):
    model = any_model(architecture, tied)
    rollouts = ragged_rollouts(masked=True)
    policy = Policy(model, temperature=0.7)
    measured = gradients.measure(policy, rollouts, engine=engine, sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, oracle_sq_norms(model, rollouts, 0.7), rtol=1e-9)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eager_models_are_measured_and_left_eager(engine, dtype, rollouts):
    model = tiny_model("qwen2", dtype=dtype)
    model.set_attn_implementation("eager")
    measured = gradients.measure(model, rollouts, engine=engine, sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, oracle_sq_norms(model, rollouts), rtol=1e-4)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(("architecture", "tied"), [("qwen2", False), ("gpt2", True), ("gemma", True)])
def test_engines_agree_in_float32(architecture, tied, rollouts):
    model = any_model(architecture, tied, torch.float32)
    by_engine = {
        engine: gradients.measure(model, rollouts, engine=engine, sketch_dim=None, progress=False).sq_norms
        for engine in gradients.ENGINES
    }
    np.testing.assert_allclose(by_engine["vmap"], by_engine["loop"], rtol=1e-4)
    np.testing.assert_allclose(by_engine["ghost"], by_engine["loop"], rtol=1e-4)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_numbers_do_not_depend_on_chunks_or_order(engine):
    model = tiny_model("qwen2", tied=True)
    rollouts = ragged_rollouts(7)
    whole = gradients.measure(model, rollouts, engine=engine, sketch_dim=64, progress=False)
    order = np.array([3, 0, 6, 2, 5, 1, 4])
    shuffled = gradients.measure(
        model, rollouts.select(order), engine=engine, sketch_dim=64, token_budget=40, progress=False
    )
    np.testing.assert_allclose(shuffled.sq_norms, whole.sq_norms[order], rtol=1e-10)
    np.testing.assert_allclose(shuffled.sketches, whole.sketches[order], rtol=1e-8, atol=1e-10)
    for name in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms"):
        for row, place in enumerate(order):
            np.testing.assert_allclose(getattr(shuffled, name)[row], getattr(whole, name)[place], rtol=1e-9)


@pytest.mark.parametrize("engine", ["ghost", "vmap"])
def test_token_statistics_equal_a_direct_computation(engine):
    model = tiny_model("llama")
    rollouts = ragged_rollouts(4)
    measured = gradients.measure(
        Policy(model, temperature=1.3), rollouts, engine=engine, sketch_dim=None, progress=False
    )
    for row in range(4):
        prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
        with torch.no_grad():
            out = model(torch.tensor([prompt + completion]), output_hidden_states=True)
        span = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        pi = torch.softmax(out.logits[0, span] / 1.3, dim=-1)
        chosen = pi[torch.arange(len(completion)), torch.tensor(completion)]
        hidden = out.hidden_states[-1][0, span]
        np.testing.assert_allclose(measured.logprobs[row], chosen.log(), rtol=1e-10)
        np.testing.assert_allclose(measured.entropy[row], torch.special.entr(pi).sum(-1), rtol=1e-10)
        np.testing.assert_allclose(measured.sum_pi_squared[row], pi.square().sum(-1), rtol=1e-10)
        np.testing.assert_allclose(measured.hidden_sq_norms[row], hidden.square().sum(-1), rtol=1e-10)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_blocks_and_parameter_subsets(engine, rollouts):
    model = tiny_model("qwen2")
    oracle = sequence_gradients(model, rollouts)
    everything = gradients.measure(model, rollouts, engine=engine, blocks="parameter", sketch_dim=None, progress=False)
    for name in everything.sq_norms_by_block:
        expected = [per_sequence[name].square().sum().item() for per_sequence in oracle]
        np.testing.assert_allclose(everything.sq_norms_by_block[name], expected, rtol=1e-9, atol=1e-20)
    some = gradients.measure(model, rollouts, engine=engine, params=r"mlp\.", sketch_dim=None, progress=False)
    assert list(some.sq_norms_by_block) == ["layers.0", "layers.1"]
    mlp = [name for name in everything.sq_norms_by_block if "mlp." in name]
    np.testing.assert_allclose(some.sq_norms, everything.sq_norms_by_block[mlp].sum(axis=1), rtol=1e-9)


def test_frozen_parameters_are_not_measured(rollouts):
    model = tiny_model("qwen2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    assert list(gradients.measure(model, rollouts, progress=False).sq_norms_by_block) == ["layers.1"]
