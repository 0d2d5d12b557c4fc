"""Every engine against plain autograd, over architectures, tied weights, ragged lengths and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import ARCHITECTURES, any_model, oracle

import gradstats as gs
import gradstats.gradients as gradients
from gradstats.policy.policy import Policy


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


def test_ghost_gives_the_numbers_of_vmap():
    policy = gs.load_policy("embedded", progress=False)
    problems = gs.load_prompts("embedded", 3, rng=1)
    rollouts = gs.sample(policy, problems, group_size=2, max_new_tokens=96, rng=1, progress=False)
    ghost, vmap = (
        gs.measure(policy, rollouts, engine=engine, sketch_dim=4096, progress=False) for engine in ("ghost", "vmap")
    )
    assert (ghost.metadata["engine"], vmap.metadata["engine"]) == ("ghost", "vmap")
    np.testing.assert_allclose(ghost.sq_norms, vmap.sq_norms, rtol=1e-5)
    for name, norms in vmap.sq_norms_by_block.items():
        np.testing.assert_allclose(ghost.sq_norms_by_block[name], norms, rtol=1e-5, err_msg=name)
    inner, expected = (one.sketches @ one.sketches.T for one in (ghost, vmap))
    np.testing.assert_allclose(inner, expected, atol=1e-5 * float(vmap.sq_norms.max()))
