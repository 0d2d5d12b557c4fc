"""Mixed precision around a model is switched off, or refused in one sentence."""

import copy
import itertools
import re
from functools import partial
from types import MethodType

import numpy as np
import pytest
import torch
from architectures import small_model
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, oracle
from rotary_models import LIMIT, lengths_around_the_limit, rotary_model
from torch import nn
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.qwen2 import modeling_qwen2

import gradstats.gradients as gradients
from gradstats.gradients import attention, memory
from gradstats.gradients.attention import forget_lengths, length_classes, refuse_mixed_lengths, same_class
from gradstats.gradients.memory import activation_size
from gradstats.gradients.objective import make_chunk, plan_chunks
from gradstats.gradients.parameters import select_parameters
from gradstats.gradients.session import token_statistics
from gradstats.policy.policy import Policy


@pytest.mark.parametrize("in_slices", [False, True])
def test_eager_attention_is_switched_on_said_and_switched_back(rollouts, request, in_slices):
    calls = request.getfixturevalue("queries_one_by_one") if in_slices else [1]
    model = tiny_model("qwen2", dtype=torch.float32)
    assert model.config._attn_implementation == "sdpa"
    with pytest.warns(UserWarning, match=r"measured with eager attention, since the model's own \(sdpa\)"):
        measured = gradients.measure(model, rollouts, token_probes=3, sketch_dim=None, progress=False)
    assert model.config._attn_implementation == "sdpa"
    assert measured.token_projections[1].dtype == np.float32
    assert measured.metadata["token_self_check"] < 1e-3
    assert calls.count(1) > len(calls) / 2


@pytest.fixture
def queries_one_by_one(monkeypatch):
    """Let eager attention go in slices of one query; return how many queries each call of the models' own had."""
    calls = []

    def counted(own):
        def forward(module, query, *args, **kwargs):
            calls.append(query.shape[2])
            return own(module, query, *args, **kwargs)

        return forward

    for models in (modeling_qwen2, modeling_gemma2):
        monkeypatch.setattr(models, "eager_attention_forward", counted(models.eager_attention_forward))
    monkeypatch.setattr(attention, "EAGER_IN_SLICES", attention._ONE_BY_ONE)
    return calls


@pytest.mark.parametrize(
    ("architecture", "engine", "recompute"),
    [
        *itertools.product(("qwen2", "gemma2"), ("ghost", "loop"), ("off", "on")),
        *itertools.product(("whole",), ("ghost", "vmap", "loop"), ("off",)),
    ],
)
def test_eager_attention_whole_and_in_slices_of_queries_is_exact(architecture, engine, recompute, rollouts, request):
    calls = [1] if architecture == "whole" else request.getfixturevalue("queries_one_by_one")
    model = small_model("qwen2" if architecture == "whole" else architecture).float()
    model.set_attn_implementation("eager")
    expected = sum(oracle(model, rollouts).values())
    measured = gradients.measure(model, rollouts, engine=engine, recompute=recompute, sketch_dim=16, progress=False)
    np.testing.assert_allclose(measured.sq_norms, expected, rtol=1e-4)
    assert calls.count(1) > len(calls) / 2
    assert model.config._attn_implementation == "eager"


def test_attention_that_cannot_go_in_slices_stays_whole(monkeypatch):
    assert attention.eager_of(small_model("bloom")) == "eager"
    assert attention.eager_of(tiny_model("qwen2")) == attention.EAGER_IN_SLICES
    own = modeling_qwen2.eager_attention_forward

    def of_all_queries(module, query, *args, **kwargs):
        attended, probabilities = own(module, query, *args, **kwargs)
        return attended / query.shape[2], probabilities

    monkeypatch.setattr(modeling_qwen2, "eager_attention_forward", of_all_queries)
    model = tiny_model("qwen2")
    assert attention.eager_of(model) == "eager"
    assert model.config._attn_implementation == "sdpa"


def test_the_memory_of_attention_in_slices(monkeypatch):
    model = tiny_model("qwen2", dtype=torch.float32)
    model.set_attn_implementation("eager")
    whole = activation_size(Policy(model, None, "tiny"))
    heads, layers = model.config.num_attention_heads, model.config.num_hidden_layers
    assert whole.longest_whole == pytest.approx((2**26 / heads) ** 0.5)
    monkeypatch.setattr(memory, "MOST_SCORES", heads * 100**2)
    sliced = activation_size(Policy(model, None, "tiny"))
    assert sliced(100) == pytest.approx(whole(100))
    assert sliced(101) == pytest.approx(101 * sliced.linear)
    assert (sliced.slice_bytes(100, layers), sliced.slice_bytes(101, layers)) == pytest.approx(
        (0, whole.quadratic * 100**2 / layers)
    )


def test_a_mixture_of_experts_in_float64_runs_without_the_grouped_product(rollouts):
    model = any_model("qwen2_moe")
    expected = sum(oracle(model, rollouts).values())
    model.set_experts_implementation("grouped_mm")
    measured = gradients.measure(model, rollouts, engine="loop", sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, expected, rtol=1e-9)
    assert model.config._experts_implementation == "grouped_mm"


def under_autocast(model: nn.Module) -> nn.Module:
    """Let accelerate bind a forward method that computes under autocast and returns float32."""
    accelerate = pytest.importorskip("accelerate")
    # Another test of this process may have left its state, in another precision.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    wrapped = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model, evaluation_mode=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return wrapped


def narrowed(model: nn.Module) -> nn.Module:
    """Replace the parameters of a layer by narrower ones for the time of its forward pass, as FSDP's policy does."""
    layer = model.model.layers[1].mlp.up_proj
    own = {}

    def before(module, inputs):
        own.update(module._parameters)
        module._parameters["weight"] = nn.Parameter(own["weight"].detach().bfloat16())
        return (inputs[0].bfloat16(),)

    def after(module, _inputs, output):
        module._parameters.update(own)
        return output.float()

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)
    return model


def inner_autocast(model: nn.Module) -> nn.Module:
    """Bind a forward method to one linear layer alone."""
    layer = model.model.layers[0].mlp.up_proj
    forward = torch.autocast("cpu", torch.bfloat16)(type(layer).forward)
    layer.forward = MethodType(forward, layer)
    return model


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            under_autocast,
            r"model \(LlamaModel\) computes in bfloat16 under autocast, although .* are float32: measure the model",
        ),
        (narrowed, r"up_proj \(Linear\) computes in bfloat16 with its weight replaced by a narrower one"),
        (inner_autocast, r"layers\.0\.mlp\.up_proj \(Linear\) computes in bfloat16 inside a wrapper"),
    ],
)
def test_wrappers_that_lower_the_precision_are_refused(wrap, message, rollouts):
    model = wrap(tiny_model("llama", dtype=torch.float32))
    with pytest.raises(ValueError, match=message):
        gradients.measure(model, rollouts, progress=False)
    plain = tiny_model("llama", dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        gradients.measure(plain, rollouts, reference_policy=model, engine="loop", sketch_dim=None, progress=False)
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    assert sum(hooks) == (2 if wrap is narrowed else 0)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_autocast_of_the_caller_is_left_for_the_measurement(engine):
    rollouts = ragged_rollouts(3)
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    policy.model.set_attn_implementation("eager")
    options = {"engine": engine, "sketch_dim": 64, "token_probes": 2, "token_exact": 1, "progress": False}
    options["reference_policy"] = policy
    expected = gradients.measure(policy, rollouts, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients.measure(policy, rollouts, **options)
        assert torch.is_autocast_enabled("cpu")
    assert np.array_equal(found.sq_norms, expected.sq_norms)
    assert np.array_equal(found.sketches, expected.sketches)
    for name in ("logprobs", "ref_logprobs", "token_projections", "heavy_sq_norms"):
        for one, other in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_array_equal(one, other)


def alone(model, rollouts):
    """Squared norms by parameter, each sequence under a model that has seen no other."""
    found = [oracle(copy.deepcopy(model), rollouts.select([row])) for row in range(len(rollouts))]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "by layer"])
@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_every_engine_equals_sequences_alone(kind, engine):
    model, rollouts = rotary_model(kind), lengths_around_the_limit()
    options = {"engine": engine, "blocks": "parameter", "sketch_dim": None, "progress": False}
    expected = alone(model, rollouts)
    tolerance = 1e-6 if kind == "by layer" else 1e-9  # Gemma's norms compute in float32
    try:
        # Twice: the factors that the longest sequence left do not reach the shorter ones.
        found = [gradients.measure(model, rollouts, **options) for _ in range(2)]
    except gradients.UnsupportedModuleError as error:
        # The rotary embedding copies the factors into its buffer, in a way that some versions of torch cannot trace.
        if (kind, engine) != ("longrope", "vmap") or not re.search(r"cannot trace .* use engine=", str(error)):
            raise
        return
    for measured in found:
        assert measured.metadata["engines_passed_over"] == {}
        for name, values in measured.sq_norms_by_block.items():
            np.testing.assert_allclose(values, expected[name], rtol=tolerance, atol=1e-18, err_msg=name)


def test_token_scores_and_a_reference_whose_factors_depend_on_the_length():
    rollouts = lengths_around_the_limit()
    model, reference = tiny_model("llama"), rotary_model("dynamic")
    scored = gradients.measure(model, rollouts, reference_policy=reference, sketch_dim=None, progress=False)
    options = {"token_probes": 2, "token_exact": 2, "sketch_dim": None, "progress": False}
    together = gradients.measure(reference, rollouts, **options)
    for row in (0, len(rollouts) - 1):  # the shortest and the longest
        one = gradients.measure(reference, rollouts.select([row]), **options)
        np.testing.assert_allclose(scored.ref_logprobs[row], one.logprobs[0], rtol=1e-9)
        np.testing.assert_allclose(together.token_projections[row], one.token_projections[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(together.heavy_sq_norms[row], one.heavy_sq_norms[0], rtol=1e-9)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_chunks_hold_sequences_with_the_factors_that_they_have_alone(kind):
    model, rollouts = rotary_model(kind), lengths_around_the_limit()
    selection = select_parameters(model)
    for chunk in plan_chunks(rollouts, Policy(model), selection):
        assert same_class(model, rollouts, chunk.tolist()) == [chunk.tolist()]
    beyond = [LIMIT + 1, LIMIT + 2] if kind == "dynamic" else [1, 1]
    assert length_classes([model], np.array([2, LIMIT, LIMIT + 1, LIMIT + 2])) == [(0,), (0,), *((n,) for n in beyond)]
    assert length_classes([tiny_model("gpt2")], np.array([2, 99])) == [(), ()]
    refuse_mixed_lengths(model, [2, LIMIT])


@pytest.mark.parametrize("engine", ["ghost", "vmap", "statistics"])
def test_chunks_of_mixed_lengths_are_refused(engine):
    policy, rollouts = Policy(rotary_model("longrope")), lengths_around_the_limit()
    chunk = make_chunk(rollouts, [0, len(rollouts) - 1], torch.device("cpu"), torch.float64)
    run = partial(token_statistics, policy, chunk)
    if engine != "statistics":
        run = partial(gradients.ENGINES[engine], policy, chunk, select_parameters(policy.model), None)
    message = r"sequences of \d+ and \d+ tokens .* the factors of model\.rotary_emb \(Phi3RotaryEmbedding\) depend on"
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        run()


def test_factors_of_a_longer_sequence_are_forgotten():
    model = rotary_model("dynamic")
    rotary = model.model.rotary_emb
    original = rotary.inv_freq.clone()
    model(torch.zeros(1, LIMIT + 5, dtype=torch.long))
    assert not torch.equal(rotary.inv_freq, original)
    forget_lengths(model)
    assert torch.equal(rotary.inv_freq, original)
    assert rotary.max_seq_len_cached == LIMIT
