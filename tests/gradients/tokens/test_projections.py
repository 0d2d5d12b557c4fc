"""Projections of token scores on random directions against one autograd pass per token, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, lora_model
from metrics import random_metric, unit_metric
from token_gradients import directions, flat, token_gradients

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients.tokens import projections
from gradstats.gradients.tokens.projections import Tangents
from gradstats.measurement.measurement import Measurement
from gradstats.policy.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft

MODELS = [("qwen2", False), ("qwen2", True), ("llama", True), ("gpt2", False), ("gpt2", True)]


@pytest.mark.parametrize("rank", [2, 16])
@pytest.mark.parametrize(("architecture", "tied"), MODELS)
def test_projections_are_inner_products_with_token_gradients(monkeypatch, architecture, tied, rank):
    monkeypatch.setattr(Tangents.__init__, "__defaults__", (rank,))
    model, rollouts = any_model(architecture, tied), ragged_rollouts(4, masked=True)
    measured = gradients.measure(
        Policy(model, temperature=0.7), rollouts, token_probes=5, token_seed=3, sketch_dim=None, progress=False
    )
    for row, rows in enumerate(token_gradients(model, rollouts, 0.7)):
        expected = flat(rows) @ directions(rows[0], 5, 3).T
        np.testing.assert_allclose(measured.token_projections[row], expected, rtol=1e-9, atol=1e-9)
    assert measured.metadata["token_self_check"] < 1e-10


@pytest.mark.parametrize("kind", ["a subset", "adapters", "adapters on the head", "padding token"])
def test_projections_of_subsets_and_adapters(kind):
    params = r"layers\.1\.(mlp|input_layernorm)|embed" if kind == "a subset" else None
    if kind == "adapters on the head":
        model = lora_model(target_modules=["q_proj", "lm_head"])
    elif kind == "padding token":
        model = any_model("qwen2")
        model.get_input_embeddings().padding_idx = 5
    else:
        model = lora_model() if kind == "adapters" else any_model("qwen2", True)
    rollouts = ragged_rollouts(3)
    measured = gradients.measure(
        model, rollouts, engine="loop", params=params, token_probes=4, sketch_dim=None, progress=False
    )
    names = set(gradients.select_parameters(model, params).parameters)
    for row, rows in enumerate(token_gradients(model, rollouts, names=names)):
        expected = flat(rows) @ directions(rows[0], 4, 0).T
        np.testing.assert_allclose(measured.token_projections[row], expected, rtol=1e-9, atol=1e-9)


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


def test_a_metric_of_ones_leaves_projections_as_they_are(rollouts):
    model = any_model("llama", True)
    options = {"token_probes": 4, "sketch_dim": None, "progress": False}
    plain = gradients.measure(model, rollouts, **options)
    ones = gradients.measure(model, rollouts, metric=unit_metric(model), **options)
    for one, other in zip(plain.token_projections, ones.token_projections, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-10)
