"""Mixtures of experts in the ghost engine: every architecture and implementation against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import MIXTURES, assert_exact, oracle, random_weightings, small_model
from torch import nn

import gradstats.gradients as gradients
from gradstats.gradients.engines.experts import ExpertsLayer
from gradstats.gradients.engines.recomputed import Recomputation


@pytest.fixture(autouse=True)
def no_mixture_is_run_again(monkeypatch):
    """Routers and experts are not left to the rule for modules of any kind."""
    record = Recomputation.record

    def of_others(self, *args):
        assert "mlp" not in self._other.path
        return record(self, *args)

    monkeypatch.setattr(Recomputation, "record", of_others)


@pytest.mark.parametrize("experts", ["eager", "batched_mm"])
@pytest.mark.parametrize("architecture", MIXTURES)
def test_mixtures_of_experts_equal_autograd(architecture, experts):
    model = small_model(architecture, MIXTURES[architecture], experts)
    measured, _ = assert_exact(model, ragged_rollouts(4, masked=True))
    assert set(measured.sq_norms_by_block) == {name for name, _ in model.named_parameters()}
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("architecture", MIXTURES)
def test_the_grouped_implementation_which_has_no_float64(architecture):
    model, rollouts = small_model(architecture, MIXTURES[architecture], "eager"), ragged_rollouts(4)
    exact = oracle(model, rollouts)
    model.float().set_experts_implementation("grouped_mm")
    measured = gradients.measure(model, rollouts, engine="ghost", blocks="parameter", sketch_dim=128, progress=False)
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, exact[name], rtol=2e-3, atol=1e-7, err_msg=name)


def test_auto_takes_ghost_for_a_mixture_and_weightings_share_the_forward_pass(rollouts):
    model = small_model("qwen3_moe", MIXTURES["qwen3_moe"], "eager")
    weightings = random_weightings(rollouts)
    found, loop = (
        gradients.measure(model, rollouts, engine=engine, sketch_dim=64, token_weights=weightings, progress=False)
        for engine in ("auto", "loop")
    )
    assert found.metadata["engine"] == "ghost"
    for name in weightings:
        np.testing.assert_allclose(found.weighted[name].sq_norms, loop.weighted[name].sq_norms, rtol=1e-5)
        np.testing.assert_allclose(found.weighted[name].sketches, loop.weighted[name].sketches, rtol=1e-4, atol=1e-6)


def test_experts_that_two_layers_share_are_one_gradient():
    model = small_model("gpt_oss", MIXTURES["gpt_oss"], "eager")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    assert_exact(model, ragged_rollouts(4))


@pytest.mark.parametrize("params", [r"down_proj$", r"gate_up_proj_bias", r"router"])
def test_some_parameters_alone(params):
    model, rollouts = small_model("gpt_oss", MIXTURES["gpt_oss"], "eager"), ragged_rollouts(4)
    expected = oracle(model, rollouts)
    measured = gradients.measure(
        model, rollouts, engine="ghost", params=params, blocks="parameter", sketch_dim=None, progress=False
    )
    assert len(measured.sq_norms_by_block.columns) in (2, 4)
    for name, values in measured.sq_norms_by_block.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-12, err_msg=name)


def test_an_index_beyond_the_last_expert_stands_for_none():
    model, rollouts = small_model("qwen3_moe", MIXTURES["qwen3_moe"], "eager"), ragged_rollouts(4)
    router = model.model.layers[0].mlp.gate

    def skip(_module, _inputs, output):
        logits, scores, chosen = output
        return logits, scores, chosen.masked_fill(scores < 0.5, 4)

    router.register_forward_hook(skip)
    assert_exact(model, rollouts)


def test_experts_that_cannot_be_computed_here_are_left_to_the_general_rule():
    experts = small_model("qwen3_moe", MIXTURES["qwen3_moe"]).model.layers[0].mlp.experts
    assert ExpertsLayer.handles(experts)
    for change in (
        lambda: setattr(experts, "_is_expert_parallel", True),
        lambda: experts.register_parameter("scale", nn.Parameter(torch.ones(1))),
        lambda: setattr(experts, "forward", experts.forward),
        lambda: setattr(experts, "has_post_expert_norm", True),
    ):
        change()
        assert not ExpertsLayer.handles(experts)
        experts._is_expert_parallel = experts.has_post_expert_norm = False
        experts._parameters.pop("scale", None)
        vars(experts).pop("forward", None)
        assert ExpertsLayer.handles(experts)


def test_a_block_that_limits_the_tokens_of_an_expert_is_refused(rollouts):
    """The first tokens of the batch take an expert's places, so that later sequences get another output alone."""
    model = small_model("qwen3_moe", MIXTURES["qwen3_moe"], "eager")
    block = model.model.layers[0].mlp
    kind = type(block)

    class Limited(kind):
        def forward(self, hidden):
            rows = hidden.flatten(0, 1)
            _, scores, chosen = self.gate(rows)
            places = nn.functional.one_hot(chosen, 4).sum(dim=1).cumsum(dim=0).gather(1, chosen)
            return self.experts(rows, chosen, scores * (places <= 6)).view_as(hidden)

    block.__class__ = Limited
    message = r"layers\.0\.mlp \(Limited\), which gives a sequence another output alone than in the batch"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(model, rollouts, engine="ghost", progress=False)


def test_a_measurement_records_what_computed_the_experts(rollouts):
    model = small_model("qwen3_moe", MIXTURES["qwen3_moe"], "eager")
    found = {
        engine: gradients.measure(model, rollouts, engine=engine, sketch_dim=None, progress=False).metadata
        for engine in ("ghost", "loop")
    }
    assert found["ghost"]["experts_implementation"] == "ghost, in place of eager"
    assert found["loop"]["experts_implementation"] == "eager"
    dense = gradients.measure(tiny_model("llama"), rollouts, sketch_dim=None, progress=False)
    assert dense.metadata["experts_implementation"] is None


def test_tokens_that_cannot_be_assigned_to_sequences_are_refused(rollouts):
    model = small_model("qwen3_moe", MIXTURES["qwen3_moe"], "eager")
    block = model.model.layers[0].mlp

    class Twice(nn.Module):
        def forward(self, hidden):
            rows = hidden.flatten(0, 1)[1:]
            _, scores, chosen = block.gate(rows)
            out = block.experts(rows, chosen, scores)
            return torch.cat([out[:1], out]).view_as(hidden)

    model.model.layers[0].mlp = Twice()
    model.model.layers[0].mlp.experts = block.experts
    with pytest.raises(
        gradients.UnsupportedModuleError, match=r"mlp\.experts \(Qwen3MoeExperts\), which gets a tensor"
    ):
        gradients.measure(model, rollouts, engine="ghost", params="experts", progress=False)
