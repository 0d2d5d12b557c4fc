"""The output embedding in slices: equal to autograd through whole logits, for every way in which logits are made."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import OLDEST_TRANSFORMERS, small_model
from conftest import VOCABULARY, ragged_rollouts, tiny_model
from gradient_models import any_model, assert_same, lora_model, random_weightings
from metrics import random_metric
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gradstats.gradients as gradients
from gradstats.gradients import head
from gradstats.gradients.checks import plain_pass
from gradstats.gradients.head import HeadLogprobs, HeadMap, head_map
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts

PEFT_WARNINGS = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
SCALED = {
    "gemma2": ({"final_logit_softcapping": 3.0}, HeadMap(cap=3.0)),
    "cohere": ({"logit_scale": 0.3}, HeadMap(scale=0.3)),
    "granite": ({"logits_scaling": 6.0}, HeadMap(scale=1 / 6)),
    "phi": ({}, HeadMap()),
}
MODELS = {
    "untied": lambda: any_model("qwen2"),
    "tied": lambda: any_model("gpt2", tied=True),
    "scaled embedding": lambda: any_model("gemma", tied=True),
    "mixture": lambda: any_model("qwen2_moe"),
    "adapters": lora_model,
    "adapter of the head": lambda: lora_model(target_modules=["q_proj", "lm_head"]),
    **{name: lambda name=name: small_model(name, SCALED[name][0]) for name in SCALED},
}


def take_slices(monkeypatch, n_logits):
    """No logits are held whole; a slice has so many."""
    monkeypatch.setattr(head, "MOST_LOGITS", 0)
    monkeypatch.setitem(head._SLICE, "cpu", n_logits)
    monkeypatch.setattr(plain_pass, "_SLICE", n_logits)


@pytest.fixture(params=[10**9, 150], ids=["one slice", "several slices"])
def sliced(request, monkeypatch):
    """Slices have all tokens of a sequence, or three."""
    take_slices(monkeypatch, request.param)


@pytest.mark.parametrize("name", SCALED)
def test_a_head_is_known_by_its_logits_and_looked_at_again_when_its_configuration_changes(name):
    options, expected = SCALED[name]
    model = small_model(name, options)
    assert head_map(model) == expected
    if name == "granite":
        model.config.logits_scaling = model.logits_scaling = 2.0
        assert head_map(model) == HeadMap(scale=0.5)


@PEFT_WARNINGS
def test_a_head_that_computes_something_else_is_not_known(monkeypatch):
    assert head_map(lora_model(target_modules=["q_proj", "lm_head"])) is None
    model = tiny_model("qwen2")
    forward = model.forward

    def masked(*args, **kwargs):
        output = forward(*args, **kwargs)
        output["logits"][..., 3] = -1e4
        return output

    monkeypatch.setattr(model, "forward", masked)
    assert head_map(model) is None


@PEFT_WARNINGS
@pytest.mark.parametrize("n_logits", [pytest.param(10**9, marks=pytest.mark.slow), 150])
@pytest.mark.parametrize("name", MODELS)
def test_measurements_in_slices_equal_those_of_whole_logits(monkeypatch, name, n_logits):
    rollouts = ragged_rollouts(4, masked=True)
    policy = Policy(MODELS[name](), temperature=0.8)
    reference = Policy(any_model("qwen2"), temperature=1.2) if name == "untied" else replace(policy, temperature=1.2)
    options = {"blocks": "parameter", "sketch_dim": 64, "token_exact": 2, "progress": False}
    options |= {"token_weights": random_weightings(rollouts), "reference_policy": reference}
    expected = gradients.measure(policy, rollouts, engine="loop", **options)
    take_slices(monkeypatch, n_logits)
    rtol = 1e-5 if name in ("scaled embedding", "gemma2", "cohere") else 1e-9  # norms that compute in float32
    for engine in ("ghost", "loop"):
        found = gradients.measure(policy, rollouts, engine=engine, **options)
        for column, values in expected.sq_norms_by_block.items():
            np.testing.assert_allclose(found.sq_norms_by_block[column], values, rtol=rtol, atol=1e-12, err_msg=column)
        np.testing.assert_allclose(found.sketches, expected.sketches, rtol=rtol, atol=1e-6 if rtol > 1e-8 else 1e-10)
        if rtol < 1e-8:
            assert_same(found, expected)
            for one, other in zip(found.heavy_sq_norms, expected.heavy_sq_norms, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9)
        assert not any("forward" in vars(module) for module in policy.model.modules())


@pytest.mark.parametrize(("name", "n_logits"), [("untied", 10**9), ("untied", 150), ("gemma2", 150)])
def test_projections_of_token_scores_are_those_of_whole_logits(monkeypatch, name, n_logits):
    if name == "gemma2" and OLDEST_TRANSFORMERS:  # whose attention cannot be differentiated so
        warnings.filterwarnings("ignore", "token scores are measured with eager attention")
    policy, rollouts = Policy(MODELS[name](), temperature=0.8), ragged_rollouts(4)
    options = {"token_probes": 3, "token_exact": 2, "sketch_dim": 64, "progress": False}
    expected = gradients.measure(policy, rollouts, **options)
    take_slices(monkeypatch, n_logits)
    found = gradients.measure(policy, rollouts, **options)
    for one, other in zip(found.token_projections, expected.token_projections, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize(("tied", "sketch_dim"), [(False, None), (True, 64)])
def test_norms_in_a_metric_are_those_of_the_loop(tied, sketch_dim, monkeypatch):
    model, rollouts = any_model("qwen2", tied=tied), ragged_rollouts(4)
    options = {"metric": random_metric(model), "blocks": "parameter", "sketch_dim": sketch_dim, "progress": False}
    found = gradients.measure(model, rollouts, engine="ghost", **options)
    monkeypatch.setattr(head, "MOST_LOGITS", 2**26)
    expected = gradients.measure(model, rollouts, engine="loop", **options)
    for column, values in expected.sq_norms_by_block.items():
        np.testing.assert_allclose(found.sq_norms_by_block[column], values, rtol=1e-9, err_msg=column)


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("params", ["lm_head", "^model"])
def test_the_head_alone_and_everything_but_the_head(params):
    model, rollouts = any_model("qwen2"), ragged_rollouts(3)
    options = {"params": params, "blocks": "parameter", "reference_policy": model, "progress": False}
    options["token_weights"] = random_weightings(rollouts, 1)
    ghost, loop = (gradients.measure(model, rollouts, engine=engine, **options) for engine in ("ghost", "loop"))
    assert_same(ghost, loop)


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("of_products", [HeadMap(), HeadMap(scale=0.4), HeadMap(cap=2.0)])
def test_gradients_of_hidden_states_weight_and_bias_are_those_of_autograd(of_products):
    rng = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=rng, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 9, 5), (41, 5), (41,))
    )
    drawn = torch.randint(0, 41, (2, 9), generator=rng)
    token_weights = torch.randn(2, 9, generator=rng, dtype=torch.float64) * (torch.arange(9) > 3)
    logprobs, entropy, sum_pi_squared = HeadLogprobs.apply(hidden, weight, bias, drawn, 0.7, of_products, None)
    found = torch.autograd.grad(logprobs, (hidden, weight, bias), token_weights)
    log_pi = (of_products(hidden @ weight.T + bias) / 0.7).log_softmax(-1)
    expected = log_pi.gather(2, drawn[..., None])[..., 0]
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, torch.special.entr(log_pi.exp()).sum(-1))
    torch.testing.assert_close(sum_pi_squared, log_pi.exp().square().sum(-1))
    for one, other in zip(found, torch.autograd.grad(expected, (hidden, weight, bias), token_weights), strict=True):
        torch.testing.assert_close(one, other)


class Rows(TorchDispatchMode):
    """Within this context, the most rows of a tensor with as many columns as the vocabulary."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and leaf.ndim > 1 and leaf.shape[-1] == VOCABULARY:
                self.most = max(self.most, leaf.numel() // VOCABULARY)
        return found


@pytest.mark.parametrize("engine", ["ghost", "loop"])
def test_nothing_in_a_measurement_holds_tokens_times_vocabulary(monkeypatch, engine):
    model, rng = any_model("qwen2"), np.random.default_rng(0)
    tokens = rng.integers(2, VOCABULARY, size=60).tolist()
    rollouts = Rollouts.from_sequences([tokens[:1]], [tokens[1:]], np.zeros(1), ["long"])
    options = {"engine": engine, "sketch_dim": 64, "token_exact": 2, "reference_policy": model, "progress": False}
    with Rows() as whole:
        gradients.measure(model, rollouts, **options)
    take_slices(monkeypatch, 150)
    assert head_map(model) == HeadMap()  # its probe has logits of eight tokens
    with Rows() as sliced:
        gradients.measure(model, rollouts, **options)
    # The weight, and its gradient, have as many rows as the model is wide.
    assert whole.most >= 59
    assert sliced.most == model.config.hidden_size
