"""Every engine gives the same numbers, and which one auto takes."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import ARCHITECTURES, any_model, oracle, with_own_parameter
from oracles.naive_estimators import sequence_gradients

import gradstats.gradients as gradients
from gradstats.gradients.engines.registry import chunk_gradient, loop_engine
from gradstats.gradients.objective import make_chunk
from gradstats.policy.policy import Policy


# Engine ghost over all architectures, parameter by parameter: test_ghost.py.
@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
def test_sq_norms_equal_autograd_in_float64(engine, architecture, tied):
    model = any_model(architecture, tied)
    rollouts = ragged_rollouts(masked=True)
    policy = Policy(model, temperature=0.7)
    measured = gradients.measure(policy, rollouts, engine=engine, sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(model, rollouts, 0.7).values()), rtol=1e-9)


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


def test_a_mixture_of_experts_is_measured_by_the_loop_in_auto(rollouts):
    model = with_own_parameter(any_model("qwen2_moe"))
    with pytest.warns(UserWarning, match='measuring with engine "loop"') as caught:
        measured = gradients.measure(model, rollouts, sketch_dim=None, progress=False)
    said = [str(warning.message) for warning in caught]
    assert any("Qwen2MoeForCausalLM" in sentence for sentence in said)
    assert any('set_experts_implementation("batched_mm")' in sentence for sentence in said)
    assert measured.metadata["engine"] == "loop"
    assert set(measured.metadata["engines_passed_over"]) == {"ghost", "vmap"}
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(model, rollouts).values()), rtol=1e-9)


def test_sequences_are_differentiated_without_their_padding():
    model, rollouts = tiny_model("llama"), ragged_rollouts(4, masked=True)
    chunk = make_chunk(rollouts, [2, 0, 3], torch.device("cpu"), torch.float64)
    widths = []
    handle = model.lm_head.register_forward_pre_hook(lambda _module, inputs: widths.append(inputs[0].shape[:2]))
    result = loop_engine(Policy(model), chunk, gradients.select_parameters(model), None)
    handle.remove()
    assert [width[0] for width in widths] == [1, 1, 1]
    assert len({width[1] for width in widths}) > 1
    expected = sum(oracle(model, rollouts).values())[[2, 0, 3]]
    np.testing.assert_allclose(result.sq_norms_by_parameter[0].sum(axis=1), expected, rtol=1e-9)
    assert result.statistics.logprobs.shape == (3, chunk.kept)


def test_the_whole_gradient_of_one_sequence_is_that_of_autograd():
    model, rollouts = tiny_model("qwen2", tied=True), ragged_rollouts(3, masked=True)
    expected = sequence_gradients(model, rollouts, 0.7)
    chunk = make_chunk(rollouts, [1], torch.device("cpu"), torch.float64)
    gradient = chunk_gradient(Policy(model, temperature=0.7), chunk, gradients.select_parameters(model))
    assert list(gradient) == [name for name, _ in model.named_parameters()]
    for name, values in gradient.items():
        torch.testing.assert_close(values, expected[1][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ["ghost", "loop", "vmap"])
def test_a_model_that_checkpoints_its_layers_itself_is_measured_like_any_other_but_by_vmap(rollouts, engine):
    model = tiny_model("qwen2").train()
    enable = getattr(model, "activation_checkpointing_enable", None)  # of newer transformers
    (enable or model.gradient_checkpointing_enable)()
    if engine == "vmap":
        with pytest.raises(gradients.UnsupportedModuleError, match="cannot go through gradient checkpointing"):
            gradients.measure(model, rollouts, engine=engine, progress=False)
        return
    measured = gradients.measure(model, rollouts, engine=engine, sketch_dim=None, progress=False)
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(tiny_model("qwen2"), rollouts).values()), rtol=1e-9)
    assert all(layer.gradient_checkpointing for layer in model.model.layers)


@pytest.mark.parametrize(("room", "engine"), [(1.5, "loop"), (2.5, "vmap"), (None, "vmap")])
def test_auto_takes_vmap_where_it_can_be_traced_and_memory_has_room_for_two_gradients(rollouts, room, engine):
    model = with_own_parameter(any_model("qwen2_moe"))
    model.set_experts_implementation("batched_mm")
    of_one = 2 * 8 * sum(one.numel() for one in model.parameters()) / 1024**3  # a gradient, and its signed copy
    options = {"memory_gib": None if room is None else room * of_one, "sketch_dim": None, "progress": False}
    with pytest.warns(UserWarning, match=f'measuring with engine "{engine}"'):
        measured = gradients.measure(model, rollouts, **options)
    assert measured.metadata["engine"] == engine
    np.testing.assert_allclose(measured.sq_norms, sum(oracle(model, rollouts).values()), rtol=1e-9)


def test_vmap_names_the_remedy_for_a_mixture_of_experts(rollouts):
    message = r'cannot trace .*model\.set_experts_implementation\("batched'
    with pytest.raises(gradients.UnsupportedModuleError, match=message):
        gradients.measure(any_model("qwen2_moe"), rollouts, engine="vmap", progress=False)
