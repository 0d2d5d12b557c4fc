"""Projections of token scores on random directions against one autograd pass per token, in float64."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, lora_model
from metrics import random_metric
from token_gradients import directions, flat, token_gradients
from torch import nn
from torch.autograd.forward_ad import unpack_dual
from torch.func import functional_call, jvp
from transformers.pytorch_utils import Conv1D

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.tokens import projections
from gradstats.gradients.tokens.projections import FactoredLayers, Tangents
from gradstats.measurement.measurement import Measurement
from gradstats.policy.policy import Policy

TANGENTS = Tangents(0, 2, rank=3)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]


@pytest.mark.parametrize("kind", ["linear", "transposed", "embedding"])
def test_the_derivative_along_the_factors_is_that_along_the_matrix(kind):
    torch.manual_seed(0)
    module = {
        "linear": lambda: nn.Linear(5, 4, dtype=torch.float64),
        "transposed": lambda: Conv1D(4, 5).double(),
        "embedding": lambda: nn.Embedding(7, 4, padding_idx=2, dtype=torch.float64),
    }[kind]()
    entered = torch.tensor([[2, 3, 6], [0, 2, 2]]) if kind == "embedding" else torch.randn(2, 3, 5).double()
    layers = FactoredLayers(module, ParameterSelection({"weight": module.weight}, ("all",), {"weight": 0}), TANGENTS)
    one = torch.ones((), dtype=torch.float64)
    factors = TANGENTS.factors("weight", module.weight.shape, [1], one)
    matrix = (factors.left @ factors.right.transpose(1, 2))[0]
    if kind == "embedding":
        matrix[2] = 0  # the padding token's row has no gradient

    def moved(epsilon):
        with layers.moving({"weight": type(factors)(factors.left[0], factors.right[0])}, epsilon):
            return module(entered)

    value, derivative = jvp(moved, (0 * one,), (one,))
    expected, along = jvp(
        lambda weight: functional_call(module, {"weight": weight}, (entered,)), (module.weight.detach(),), (matrix,)
    )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(derivative, along)
    assert not module._forward_hooks


def test_weights_of_other_modules_are_left_to_be_written_out():
    model = tiny_model("gpt2", tied=True)
    selection = gradients.select_parameters(model, r"h\.0\.(ln_1|mlp\.c_fc)|wte")
    layers = FactoredLayers(model, selection, TANGENTS)
    # Biases and norms are vectors; the head is tied to the embedding, and both are known.
    assert layers.shapes == {"transformer.wte.weight": (41, 24), "transformer.h.0.mlp.c_fc.weight": (24, 96)}


def test_a_weight_that_an_unknown_module_shares_is_not_factored():
    class Scaled(nn.Linear):
        def forward(self, entered):
            return 2 * super().forward(entered)

    linear, scaled = nn.Linear(3, 3, bias=False), Scaled(3, 3, bias=False)
    scaled.weight = linear.weight
    selection = ParameterSelection({"0.weight": linear.weight}, ("all",), {"0.weight": 0})
    for modules, shapes in (((linear, scaled), {}), ((linear,), {"0.weight": (3, 3)})):
        assert FactoredLayers(nn.Sequential(*modules), selection, TANGENTS).shapes == shapes


def with_padding():
    model = any_model("qwen2")
    model.get_input_embeddings().padding_idx = 5
    return model


#: Model → how it is made, and which parameters are measured.
MODELS = {
    "untied": (lambda: any_model("qwen2"), None),
    "tied": (lambda: any_model("qwen2", True), None),
    "llama": (lambda: any_model("llama", True), None),
    "gpt2": (lambda: any_model("gpt2"), None),
    "tied gpt2": (lambda: any_model("gpt2", True), None),
    "a subset": (lambda: any_model("qwen2", True), r"layers\.1\.(mlp|input_layernorm)|embed"),
    "adapters": (lora_model, None),
    "adapters on the head": (lambda: lora_model(target_modules=["q_proj", "lm_head"]), None),
    "padding token": (with_padding, None),
}


@pytest.mark.parametrize("rank", [2, 16])
@pytest.mark.parametrize("kind", MODELS)
def test_projections_are_inner_products_with_token_gradients(monkeypatch, kind, rank):
    monkeypatch.setattr(Tangents.__init__, "__defaults__", (rank,))
    build, params = MODELS[kind]
    policy, rollouts = Policy(build(), temperature=0.7), ragged_rollouts(4, masked=True)
    options = {"params": params, "token_probes": 5, "token_seed": 3, "sketch_dim": None, "progress": False}
    measured = gradients.measure(policy, rollouts, **options)
    names = set(gradients.select_parameters(policy.model, params).parameters)
    for row, rows in enumerate(token_gradients(policy.model, rollouts, 0.7, names=names)):
        expected = flat(rows) @ directions(rows[0], 5, 3).T
        np.testing.assert_allclose(measured.token_projections[row], expected, rtol=1e-9, atol=1e-9)
    assert measured.metadata["token_self_check"] < 1e-10


def test_no_direction_passes_the_output_embedding_where_it_does_not_move(rollouts):
    model, seen = tiny_model("qwen2"), []

    def keep(_module, inputs, _output):
        seen.append((unpack_dual(inputs[0]).tangent is not None, inputs[0].shape[1]))

    model.lm_head.register_forward_hook(keep)
    gradients.measure(model, rollouts, params="layers", sketch_dim=None, token_probes=2, progress=False)
    assert 1 in {positions for _, positions in seen}  # the passes along directions need no logits
    assert not any(moving for moving, _ in seen)


def test_projections_depend_neither_on_chunks_nor_on_shards_nor_on_directions_at_once(monkeypatch):
    rollouts = ragged_rollouts(6)
    options = {"token_probes": 7, "token_exact": 2, "sketch_dim": 32}
    whole = gradients.measure(tiny_model("gpt2"), rollouts, progress=False, **options)
    monkeypatch.setattr(projections, "_ENOUGH_DIRECTIONS", 3)
    monkeypatch.setattr(projections, "_ENOUGH_TOKENS", 0)
    monkeypatch.setattr(projections, "_HEAD_ELEMENTS", 1000)
    session = gradients.MeasuringSession.open(
        tiny_model("gpt2"), rollouts, MeasurementSection(token_budget=30, **options)
    )
    parts = Measurement.concatenate(session.measure(rollouts.select(rows)) for rows in ([0, 1], [2, 3, 4], [5]))
    for row in range(6):
        np.testing.assert_allclose(parts.token_projections[row], whole.token_projections[row], rtol=1e-9, atol=1e-10)
        np.testing.assert_array_equal(parts.heavy_positions[row], whole.heavy_positions[row])
        np.testing.assert_allclose(parts.heavy_sketches[row], whole.heavy_sketches[row], rtol=1e-9, atol=1e-10)


def test_running_out_of_memory_takes_fewer_directions_then_fewer_sequences(monkeypatch, rollouts):
    projector = projections._Projector
    whole = gradients.measure(tiny_model("gpt2"), rollouts, token_probes=8, sketch_dim=None, progress=False)
    call = projector.__call__

    def scarce(self, which):
        if len(which) * len(self._chunk.rows) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return call(self, which)

    monkeypatch.setattr(projector, "__call__", scarce)
    session = gradients.MeasuringSession.open(
        tiny_model("gpt2"), rollouts, MeasurementSection(token_probes=8, sketch_dim=None)
    )
    session.token_budget = 4096
    monkeypatch.setattr("gradstats.gradients.objective.MOST_PADDING", 0.99)
    with pytest.warns(RuntimeWarning) as caught:
        measured = session.measure(rollouts)
    messages = [str(item.message) for item in caught]
    assert messages[0] == "memory ran out with 8 directions at once: continuing with 4"
    assert any(sentence.startswith("memory ran out on 5 sequences of") for sentence in messages)
    for row in range(5):
        np.testing.assert_allclose(measured.token_projections[row], whole.token_projections[row], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("architecture", "tied"), [("qwen2", True), ("gpt2", False)])
def test_token_scores_in_a_metric_are_those_of_scaled_gradients(architecture, tied):
    model, rollouts = any_model(architecture, tied), ragged_rollouts(3, masked=True)
    metric = random_metric(model)
    measured = gradients.measure(
        model, rollouts, metric=metric, token_probes=5, token_seed=3, token_exact=2, sketch_dim=32, progress=False
    )
    for row, rows in enumerate(token_gradients(model, rollouts)):
        scale = torch.cat([metric.of_parameter(name).flatten() for name in rows[0]]).numpy()
        scaled = flat(rows) * scale
        np.testing.assert_allclose(
            measured.token_projections[row], scaled @ directions(rows[0], 5, 3).T, rtol=1e-8, atol=1e-8
        )
        energy = np.square(scaled).sum(axis=1)
        np.testing.assert_allclose(measured.heavy_sq_norms[row], energy[measured.heavy_positions[row]], rtol=1e-8)
        np.testing.assert_allclose(measured.sq_norms[row], np.square(scaled.sum(axis=0)).sum(), rtol=1e-8)
    assert measured.metadata["token_self_check"] < 1e-10


def test_directions_are_isotropic():
    tangents = Tangents(0, 4000)
    drawn = tangents.dense("w", (3, 4), range(4000), torch.zeros((), dtype=torch.float64)).flatten(1).numpy()
    assert np.abs(drawn.T @ drawn / 4000 - np.eye(12)).max() < 5 * np.sqrt(2 / 4000)
    assert np.abs(drawn.mean(axis=0)).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("rank", [1, 4])
def test_directions_of_a_matrix_are_products_of_scaled_signs_and_others_have_independent_ones(rank):
    tangents, like = Tangents(7, 3, rank), torch.zeros((), dtype=torch.float64)
    pair = tangents.factors("w", (5, 6), range(3), like)
    np.testing.assert_allclose(pair.left.abs(), np.full((3, 5, rank), rank**-0.5))
    np.testing.assert_array_equal(pair.right.abs(), np.ones((3, 6, rank)))
    dense = tangents.dense("w", (5, 6), range(3), like)
    np.testing.assert_allclose(dense, np.einsum("nir,njr->nij", pair.left, pair.right))
    assert (torch.linalg.matrix_rank(dense) <= rank).all()
    drawn = tangents.dense("bias", (2, 3, 4), range(2), like.float())
    assert drawn.dtype == torch.float32
    np.testing.assert_array_equal(drawn.abs(), np.ones((2, 2, 3, 4)))
    assert not tangents.has_factors((2, 3, 4))


def test_a_direction_depends_on_seed_number_name_and_shape_alone():
    like = torch.zeros((), dtype=torch.float64)
    together = Tangents(0, 9).dense("w", (4, 5), [0, 3, 8], like)
    assert torch.equal(together[1:2], Tangents(0, 4).dense("w", (4, 5), [3], like))
    for other in (Tangents(1, 4).dense("w", (4, 5), [3], like), Tangents(0, 4).dense("v", (4, 5), [3], like)):
        assert not torch.equal(other, together[1:2])
    assert not torch.equal(Tangents(0, 4).dense("w", (5, 4), [3], like).flatten(), together[1].flatten())
