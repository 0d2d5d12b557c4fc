"""The attention with which a model is measured, and that the model keeps its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_model
from gradient_models import any_model, oracle

import gradstats.gradients as gradients


def test_eager_attention_is_switched_on_said_and_switched_back(rollouts):
    model = tiny_model("qwen2", dtype=torch.float32)
    assert model.config._attn_implementation == "sdpa"
    with pytest.warns(UserWarning, match=r"measured with eager attention, since the model's own \(sdpa\)"):
        measured = gradients.measure(model, rollouts, token_probes=3, sketch_dim=None, progress=False)
    assert model.config._attn_implementation == "sdpa"
    assert measured.token_projections[1].dtype == np.float32
    assert measured.metadata["token_self_check"] < 1e-3


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eager_models_are_measured_and_left_eager(engine, dtype, rollouts):
    model = tiny_model("qwen2", dtype=dtype)
    model.set_attn_implementation("eager")
    measured = gradients.measure(model, rollouts, engine=engine, sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(model, rollouts).values()), rtol=1e-4)
    assert model.config._attn_implementation == "eager"


def test_a_mixture_of_experts_in_float64_runs_without_the_grouped_product(rollouts):
    model = any_model("qwen2_moe")
    expected = sum(oracle(model, rollouts).values())
    model.set_experts_implementation("grouped_mm")
    measured = gradients.measure(model, rollouts, engine="loop", sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, expected, rtol=1e-9)
    assert model.config._experts_implementation == "grouped_mm"
