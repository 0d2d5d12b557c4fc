"""The self-check refuses an engine with any of these faults; without a fault it passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, ragged_rollouts, tiny_model
from gradient_models import random_weightings
from injected_faults import CHANGES, LAYERS, OF_TOKENS, QUANTITIES, RESULTS, break_layer, of_tokens

import gradstats.gradients as gradients
from gradstats.gradients import session, sketches
from gradstats.gradients.checks import self_check as deviations
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.sketches import KeptSigns
from gradstats.rollouts.table import Rollouts


def rollouts_of_a_run():
    """Completions of 1 to 30 tokens: a few of each length, and most in one chunk of equal length."""
    return Rollouts.concatenate([ragged_rollouts(12, longest=30), equally_long(24)])


def equally_long(n):
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, VOCABULARY, size=4).tolist() for _ in range(n)]
    completions = [rng.integers(2, VOCABULARY, size=12).tolist() for _ in range(n)]
    return Rollouts.from_sequences(prompts, completions, rng.normal(size=n), [f"q{row // 2}" for row in range(n)])


def measured(model, *, sketch_dim=512, weighted=False, reference=None):
    rollouts = rollouts_of_a_run()
    weights = random_weightings(rollouts, 1) if weighted else None
    return gradients.measure(
        model,
        rollouts,
        engine="ghost",
        sketch_dim=sketch_dim,
        token_weights=weights,
        reference_policy=reference,
        progress=False,
    )


@pytest.mark.parametrize("sketch_dim", [512, None])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_sound_engine_passes(layer, sketch_dim):
    measured(LAYERS[layer][0](), sketch_dim=sketch_dim, weighted=True)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_fault_of_one_parameter(layer, change, monkeypatch):
    model, kind, name = LAYERS[layer]
    break_layer(monkeypatch, kind, name, CHANGES[change])
    with pytest.raises(gradients.SelfCheckError, match=f'"ghost" fails its self-check .*squared norm of .*{name}'):
        measured(model(), sketch_dim=None)


@pytest.mark.parametrize("fault", RESULTS)
def test_a_fault_of_results(fault, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        return RESULTS[fault](ghost_engine(policy, chunk, selection, sketch))

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    with pytest.raises(gradients.SelfCheckError, match="fails its self-check|is not finite, although its gradient is"):
        measured(tiny_model("qwen2", dtype=torch.float32), weighted=True)


@pytest.mark.parametrize("change", OF_TOKENS)
@pytest.mark.parametrize("name", QUANTITIES)
def test_a_fault_of_a_recorded_quantity(name, change, monkeypatch):
    def wrong(policy, chunk, selection, sketch):
        return of_tokens(name, OF_TOKENS[change])(ghost_engine(policy, chunk, selection, sketch))

    monkeypatch.setitem(gradients.ENGINES, "ghost", wrong)
    refused = f"the recorded {name} of (its tokens deviates|the sequence .* is not finite, although its gradient is)"
    with pytest.raises(gradients.SelfCheckError, match=refused):
        measured(tiny_model("qwen2", dtype=torch.float32))


def test_a_fault_of_the_references_log_probabilities(monkeypatch):
    sound = session.reference_logprobs
    monkeypatch.setattr(session, "reference_logprobs", lambda reference, chunk: sound(reference, chunk) * 1.02)
    model = tiny_model("qwen2", dtype=torch.float32)
    with pytest.raises(gradients.SelfCheckError, match="the recorded ref_logprobs of its tokens deviates"):
        measured(model, reference=tiny_model("llama", dtype=torch.float32))


@pytest.mark.parametrize("fault", ["zero", "2 % too large", "without signs", "too large by its definition"])
def test_a_fault_of_the_projection_that_every_engine_shares(fault, monkeypatch):
    sound, defined = sketches.CountSketch.add_slice, deviations.plain_sketch
    factor = {"zero": 0.0, "2 % too large": 1.02, "too large by its definition": 2.0}.get(fault, 1.0)

    def add_slice(self, total, name, size, first, values):
        sound(self, total, name, size, first, values * factor)

    monkeypatch.setattr(sketches.CountSketch, "add_slice", add_slice)
    if fault == "too large by its definition":  # then only the inner products show it
        monkeypatch.setattr(deviations, "plain_sketch", lambda *given: 2.0 * defined(*given))
    if fault == "without signs":
        monkeypatch.setattr(KeptSigns, "between", lambda self, first, last, like: like.new_ones(last - first))
    with pytest.raises(gradients.SelfCheckError, match="the projection fails its self-check"):
        measured(tiny_model("qwen2", dtype=torch.float32), sketch_dim=16384)
