"""A measuring session: its shards, sequences that are left out, and memory that runs out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import assert_same, changed
from transformers import AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.batch import Batch
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts


@pytest.mark.parametrize("bare", [True, False])
def test_reference_logprobs_equal_a_direct_computation(bare):
    model, reference = tiny_model("qwen2"), tiny_model("llama", tied=True)
    rollouts = ragged_rollouts(5)
    given, temperature = (reference, 0.7) if bare else (Policy(reference, temperature=1.6), 1.6)
    measured = gradients.measure(
        Policy(model, temperature=0.7), rollouts, reference_policy=given, sketch_dim=None, progress=False
    )
    for row in range(5):
        prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / temperature).log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        np.testing.assert_allclose(measured.ref_logprobs[row], expected, rtol=1e-9)
    batch = Batch.from_measurement(measured)
    np.testing.assert_allclose(batch.ref_logprobs[1, : len(measured.ref_logprobs[1])], measured.ref_logprobs[1])


def test_a_reference_of_another_vocabulary_is_refused(rollouts):
    config = tiny_config("llama")
    config.vocab_size = 50
    other = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="has a vocabulary of 50, but Qwen2ForCausalLM one of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, reference_policy=other, progress=False)
    with pytest.raises(TypeError, match="policy is a str"):
        gradients.measure(tiny_model("qwen2"), rollouts, reference_policy="embedded", progress=False)


def test_sequences_without_a_finite_gradient_are_named_and_left_out(monkeypatch):
    rollouts = ragged_rollouts(5)
    # Not one of the sequences that the self-check passes over.
    poisoned = changed(ghost_engine, lambda norms, chunk: np.where((chunk.rows == 2)[:, None], np.nan, norms))
    clean = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    monkeypatch.setitem(gradients.ENGINES, "ghost", poisoned)
    with pytest.warns(RuntimeWarning, match=r"1 of 5 sequences have a gradient that is not finite \(p1/0\)"):
        measured = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    kept = [0, 1, 3, 4]
    np.testing.assert_allclose(measured.sq_norms, clean.sq_norms[kept])
    np.testing.assert_allclose(measured.sketches, clean.sketches[kept])
    assert measured.metadata["not_finite"] == [["p1", 0]]
    assert [len(values) for values in measured.logprobs] == [len(clean.logprobs[row]) for row in kept]


def test_token_ids_of_another_vocabulary_are_refused():
    rollouts = Rollouts.from_sequences([[1], [2]], [[5], [99]], [0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="completion_tokens hold the token id 99, but .* a vocabulary of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_said_to_be_so(value):
    model = tiny_model("qwen2")
    model.model.layers[1].mlp.up_proj.weight.data[3, 2] = value
    sentence = r"the weights of .* hold NaN or infinity \(model\.layers\.1\.mlp\.up_proj\.weight\): load an intact"
    with pytest.raises(ValueError, match=sentence):
        gradients.measure(model, ragged_rollouts(2), progress=False)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_memory_that_runs_out_halves_the_chunks(monkeypatch, error):
    def small(policy, chunk, selection, sketch):
        if chunk.n_tokens > 60:
            raise error
        return ghost_engine(policy, chunk, selection, sketch)

    rollouts = ragged_rollouts(12, longest=6)
    whole = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(engine="ghost", sketch_dim=32)
    )
    session.engine = small
    monkeypatch.setattr("gradstats.gradients.objective.MOST_PADDING", 1.0)
    with pytest.warns(RuntimeWarning, match=r"memory ran out on \d+ sequences of \d+ tokens together: continuing with"):
        measured = session.measure(rollouts)
    assert 30 <= session.token_budget < 120
    assert_same(replace(measured, ref_logprobs=measured.logprobs), replace(whole, ref_logprobs=whole.logprobs))


@pytest.mark.parametrize(
    ("error", "reason"), [(torch.OutOfMemoryError("out of memory"), "out of memory"), (MemoryError(), "MemoryError")]
)
def test_memory_that_runs_out_on_one_sequence_ends_the_run(rollouts, error, reason):
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(engine="ghost", sketch_dim=None)
    )

    def never(*_):
        raise error

    session.engine = never
    with pytest.raises(RuntimeError, match=rf"memory ran out on a single sequence of \d+ tokens \({reason}\): measure"):
        session.measure(rollouts.select([1]))


def test_other_errors_of_an_engine_are_not_taken_for_memory(rollouts):
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(engine="ghost", sketch_dim=None)
    )

    def broken(*_):
        raise RuntimeError("shapes do not match")

    session.engine = broken
    with pytest.raises(RuntimeError, match="shapes do not match"):
        session.measure(rollouts)


def test_progress_counts_every_sequence_and_token():
    rollouts = ragged_rollouts(6)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, MeasurementSection(token_budget=40))
    counted = np.zeros(2, dtype=int)
    session.measure(rollouts, lambda n_sequences, n_tokens: counted.__iadd__([n_sequences, n_tokens]))
    assert counted[0] == 6
    assert counted[1] >= sum(len(c) for c in rollouts.tokens("completion_tokens"))


def test_sequences_beyond_the_positions_of_the_model_are_refused():
    model = tiny_model("gpt2")
    rollouts = Rollouts.from_sequences([[5], [5]], [[6] * 20, [6] * 70], np.zeros(2), ["short", "long"])
    with pytest.raises(ValueError, match=r"sequence long/0 has 71 tokens, and GPT2LMHeadModel has positions for 64 "):
        gradients.measure(model, rollouts, progress=False)
