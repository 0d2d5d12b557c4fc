"""The vmap engine: models that torch.func cannot trace."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import tiny_model
from gradient_models import any_model, oracle, with_own_parameter

import gradstats.gradients as gradients


def test_gradient_checkpointing_is_refused_by_vmap(rollouts):
    model = tiny_model("qwen2")
    model.model.gradient_checkpointing = True
    with pytest.raises(gradients.UnsupportedModuleError, match="cannot go through gradient checkpointing"):
        gradients.measure(model, rollouts, engine="vmap", progress=False)


def test_a_mixture_of_experts_that_can_be_traced_is_measured_by_vmap_in_auto(rollouts):
    model = with_own_parameter(any_model("qwen2_moe"))
    model.set_experts_implementation("batched_mm")
    with pytest.warns(UserWarning, match='measuring with engine "vmap": engine="ghost" does not know the module'):
        measured = gradients.measure(model, rollouts, sketch_dim=None, progress=False)
    assert measured.metadata["engine"] == "vmap"
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(model, rollouts).values()), rtol=1e-9)


def test_auto_takes_the_loop_where_memory_has_room_for_one_gradient_alone(rollouts):
    model = with_own_parameter(any_model("qwen2_moe"))
    model.set_experts_implementation("batched_mm")
    room = 2 * 8 * sum(one.numel() for one in model.parameters()) / 1024**3  # a gradient, and its signed copy
    chosen = {}
    for n_gradients in (1.5, 2.5):
        with pytest.warns(UserWarning, match="measuring with engine"):
            measured = gradients.measure(
                model, rollouts, sketch_dim=None, memory_gib=n_gradients * room, progress=False
            )
        chosen[n_gradients] = measured.metadata["engine"]
    assert chosen == {1.5: "loop", 2.5: "vmap"}


def test_vmap_names_the_remedy_for_a_mixture_of_experts(rollouts):
    with pytest.raises(
        gradients.UnsupportedModuleError, match=r'cannot trace .*model\.set_experts_implementation\("batched'
    ):
        gradients.measure(any_model("qwen2_moe"), rollouts, engine="vmap", progress=False)
