"""Layers that run again in the backward pass: the same numbers, and which layers and chunks they are."""

import re

import numpy as np
import pytest
import torch
from architectures import OLDEST_TRANSFORMERS, small_model
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, assert_same, lora_model, random_weightings

import gradstats.gradients as gradients
from gradstats.gradients.checks.self_check import SelfCheckError
from gradstats.gradients.memory import ActivationSize
from gradstats.gradients.recompute import RecomputeRule, recomputed_layers, why_not_twice
from gradstats.policy.policy import Policy

MODELS = {
    "untied": lambda: any_model("qwen2"),
    "tied": lambda: any_model("gpt2", tied=True),
    "scaled norms": lambda: any_model("gemma", tied=True),
    "mixture": lambda: any_model("qwen2_moe"),
    "adapters": lora_model,
    "last norms": lambda: any_model("qwen2"),
    "recurrent": lambda: small_model("mamba2"),  # modules of no known kind
    "shared layers": lambda: small_model("zamba2"),
    "hybrid": lambda: small_model("qwen3_next"),
}


#: Every model with one engine, and those of different kinds with the other.
WITH = [
    *((name, "ghost", 64) for name in MODELS if name != "tied"),
    *((name, "loop", 64) for name in ("untied", "mixture", "adapters", "shared layers")),
    ("tied", "ghost", None),
]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(("name", "engine", "sketch_dim"), WITH)
def test_measurements_are_the_same(name, engine, sketch_dim):
    model, rollouts = MODELS[name](), ragged_rollouts(4, masked=True)
    options = {"blocks": "parameter", "engine": engine, "sketch_dim": sketch_dim, "progress": False}
    options["params"] = r"layers\.1.*norm" if name == "last norms" else None
    options |= {"token_weights": random_weightings(rollouts), "reference_policy": model}
    if (name, engine) == ("shared layers", "ghost") and OLDEST_TRANSFORMERS:
        with pytest.raises(SelfCheckError):  # its Zamba2 mixes the sequences of a batch
            gradients.measure(model, rollouts, **options)
        return
    found = gradients.measure(model, rollouts, recompute="on", **options)
    expected = gradients.measure(model, rollouts, recompute="off", **options)
    if sketch_dim:
        assert_same(found, expected)
    for column, values in expected.sq_norms_by_block.items():
        np.testing.assert_allclose(found.sq_norms_by_block[column], values, rtol=1e-9, atol=1e-15, err_msg=column)
    assert not any("forward" in vars(module) for module in model.modules())


def test_activations_of_one_layer_at_a_time_are_kept():
    model, kept = tiny_model("qwen2"), {True: 0, False: 0}
    for wanted in kept:

        def count(tensor: torch.Tensor, wanted: bool = wanted) -> torch.Tensor:
            kept[wanted] += tensor.numel()
            return tensor

        with recomputed_layers(model, wanted), torch.autograd.graph.saved_tensors_hooks(count, lambda one: one):
            model.model(torch.arange(20)[None], use_cache=False)
    assert kept[True] < 0.2 * kept[False]


def test_a_layer_that_cannot_run_twice_is_refused_by_name(rollouts):
    model = tiny_model("qwen2")
    mlp = model.model.layers[1].mlp
    mlp.register_buffer("calls", torch.zeros(()))
    mlp.register_forward_hook(lambda module, *_: module.calls.add_(1) and None)
    assert why_not_twice(model).startswith("model.layers.1 (Qwen2DecoderLayer) changes its state")
    with pytest.raises(
        gradients.UnsupportedModuleError, match=r'is "on", but model\.layers\.1 .*: use recompute="off"'
    ):
        gradients.measure(model, rollouts, recompute="on", progress=False)
    assert not RecomputeRule(Policy(model), memory_gib=1e-12)(1, 50)
    gradients.measure(model, rollouts, memory_gib=1e-6, engine="ghost", progress=False)


def test_a_layer_with_dropout_is_refused_by_name_and_can_be_switched_to_evaluation(rollouts):
    model = tiny_model("gpt2")
    model.transformer.h[1].mlp.dropout.p = 0.5
    refused = (
        r"is \"on\", but transformer\.h\.1 .* \(dropout, or routing with a state\): call model\.eval\(\), or use rec"
    )
    assert "h.1 (GPT2Block) gives another output the second time (dropout" in why_not_twice(model.train())
    with pytest.raises(gradients.UnsupportedModuleError, match=refused):
        gradients.measure(model, rollouts, recompute="on", progress=False)
    assert why_not_twice(model.eval()) == ""
    gradients.measure(model, rollouts, recompute="on", progress=False)


def test_layers_that_share_keys_and_values_through_an_object_do_not_run_again():
    model = small_model("gemma4_text")
    assert re.search(r"may exchange tensors with others through (KVSharing|User)Dict", why_not_twice(model))
    assert not RecomputeRule(Policy(model), memory_gib=1e-12)(1, 50)


def test_layers_run_again_where_their_activations_exceed_the_memory():
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    rule = RecomputeRule(policy, memory_gib=2e-4)
    sizes = [rule(1, time) for time in (4, 20, 60)], [rule(n, 20) for n in (1, 10)]
    assert sizes == ([False, False, True], [False, True])
    assert not RecomputeRule(policy)(1, 60)
    assert RecomputeRule(policy, "on")(1, 4)
    assert not RecomputeRule(policy, "off", 1e-12)(1, 60)
    policy.model.train().model.layers[0].gradient_checkpointing = True
    assert rule(1, 4)


def test_an_accelerator_s_memory_decides_how_many_tokens_go_together(monkeypatch):
    """What a layer of Qwen2-1.5B keeps of a token in bfloat16 is 103,480 bytes; it has 28 layers."""
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    assert RecomputeRule(policy).token_budget == 4096

    def budget(gib, of_token=28 * 103_480, memory_gib=None):
        monkeypatch.setattr("gradstats.gradients.recompute.planned_memory_gib", lambda device: gib)
        rule = RecomputeRule(policy, memory_gib=memory_gib)
        rule.__dict__["_activations"] = ActivationSize(of_token, 0.0)
        return rule.token_budget

    monkeypatch.setattr("gradstats.gradients.recompute.is_accelerator", lambda device: True)
    assert 2**14 <= budget(79.2) <= 2**16
    assert budget(79.2) == pytest.approx(2 * budget(39.6), rel=0.01)
    assert budget(79.2, memory_gib=1.0) == int(2**30 // (1.2 * 28 * 103_480))
    assert budget(79.2, of_token=10) == 2**16
    assert budget(0.001) >= 1


def test_when_memory_has_run_out_layers_run_again_where_they_may_and_not_by_vmap(rollouts):
    policy = Policy(tiny_model("qwen2"))
    assert [RecomputeRule(policy, wanted).sparing().wanted for wanted in ("auto", "off")] == ["on", "off"]
    with pytest.raises(gradients.UnsupportedModuleError, match='engine="vmap" cannot run layers again'):
        gradients.measure(policy, rollouts, engine="vmap", recompute="on", progress=False)
