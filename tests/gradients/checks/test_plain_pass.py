"""The plain pass against the public oracle of the reference package, and the definition of the sketch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import oracle
from transformers import AutoModelForCausalLM

from gradstats.gradients import measure
from gradstats.gradients.checks.plain_pass import plain_pass, plain_sketch, plain_tokens
from gradstats.gradients.parameters import select_parameters
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_norms_and_token_quantities(architecture, masked):
    model, rollouts = tiny_model(architecture), ragged_rollouts(4, masked=masked)
    policy = Policy(model, temperature=0.7)
    expected = oracle(model, rollouts, 0.7)
    selection = select_parameters(model)
    for row in range(len(rollouts)):
        found = plain_pass(policy, rollouts, row, selection, None)
        for name, value in found.gradients[0].sq_norms.items():
            assert value == pytest.approx(expected[name][row], rel=1e-9)
        ids = [*rollouts.frame["prompt_tokens"][row], *rollouts.frame["completion_tokens"][row]]
        n_prompt = len(rollouts.frame["prompt_tokens"][row])
        pi = torch.softmax(model(torch.tensor([ids])).logits[0, n_prompt - 1 : -1] / 0.7, dim=-1).detach().numpy()
        np.testing.assert_allclose(found.tokens["logprobs"], np.log(pi[np.arange(len(pi)), ids[n_prompt:]]), rtol=1e-9)
        np.testing.assert_allclose(found.tokens["entropy"], -(pi * np.log(pi)).sum(axis=1), rtol=1e-9)
        np.testing.assert_allclose(found.tokens["sum_pi_squared"], (pi**2).sum(axis=1), rtol=1e-9)
        assert plain_tokens(policy, rollouts, row).keys() == found.tokens.keys()


def test_a_large_gradient_in_float32_has_the_norm_of_float64():
    config, name = tiny_config("qwen2"), "model.layers.0.mlp.up_proj.weight"
    config.num_hidden_layers, config.layer_types, config.intermediate_size = 1, ["full_attention"], 2**18
    model = AutoModelForCausalLM.from_config(config).eval().double()
    rollouts = ragged_rollouts(2)
    expected = oracle(model, rollouts)[name]
    policy = Policy(model.float())
    selection = select_parameters(model, params="up_proj")
    assert selection.n_parameters > 4e6
    found = plain_pass(policy, rollouts, 1, selection, None)
    assert found.gradients[0].sq_norms[name] == pytest.approx(expected[1], rel=1e-5)
    measured = measure(policy, rollouts, engine="loop", params="up_proj", sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, expected, rtol=1e-5)


def test_weightings_multiply_the_mask():
    model, rollouts = tiny_model("gpt2"), ragged_rollouts(2, masked=True)
    length = len(rollouts.frame["completion_tokens"][1])
    found = plain_pass(Policy(model), rollouts, 1, select_parameters(model), None, [np.full(length, 2.0)])
    plain, doubled = (gradient.sq_norms["lm_head.weight"] for gradient in found.gradients)
    assert doubled == pytest.approx(4 * plain)


def test_the_definition_of_a_sketch_by_hand():
    sketch = CountSketch(5, seed=3)
    values = {"w": np.random.default_rng(0).normal(size=(2, 23)), "b": np.random.default_rng(1).normal(size=(2, 4))}
    made = torch.zeros(2, 5, dtype=torch.float64)
    for name, gradients in values.items():
        sketch.add(made, name, torch.from_numpy(gradients))
    np.testing.assert_allclose(plain_sketch(sketch, values), made.numpy(), atol=1e-12)
