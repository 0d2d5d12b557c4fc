"""A measuring session: its self-check, its shards, and memory that runs out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_same

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.gradients.checks.self_check import two_rows
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.rollouts.table import Rollouts


def changed(engine, change):
    """An engine whose norms, (weightings, batch, blocks), are changed."""

    def run(policy, chunk, selection, sketch):
        result = engine(policy, chunk, selection, sketch)
        return replace(result, sq_norms_by_block=change(result.sq_norms_by_block, chunk))

    return run


def test_a_wrong_engine_is_refused_by_the_self_check(monkeypatch, rollouts):
    monkeypatch.setitem(gradients.ENGINES, "ghost", changed(ghost_engine, lambda norms, chunk: norms * 1.001))
    message = r'engine "ghost" fails its self-check .* deviate by 1\.00e-03'
    with pytest.raises(gradients.SelfCheckError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, engine="ghost", progress=False)
    with pytest.warns(UserWarning, match='measuring with engine "vmap": the ' + message):
        measured = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=None, progress=False)
    assert measured.metadata["engine"] == "vmap"
    assert "self-check" in measured.metadata["engines_passed_over"]["ghost"]


def test_an_engine_that_padding_disturbs_is_refused(monkeypatch, rollouts):
    disturbed = changed(ghost_engine, lambda norms, chunk: norms * (1.0 + 0.01 * (len(chunk.rows) > 1)))
    monkeypatch.setitem(gradients.ENGINES, "ghost", disturbed)
    with pytest.raises(gradients.SelfCheckError, match=r"by 1\.00e-02 between a sequence alone and padded"):
        gradients.measure(tiny_model("qwen2", dtype=torch.float32), rollouts, engine="ghost", progress=False)


def test_the_self_check_is_recorded(rollouts):
    check = gradients.measure(tiny_model("gpt2"), rollouts, progress=False).metadata["self_check"]
    assert check["tolerance"] == 1e-8
    assert 0 <= check["engine_against_loop"] < 1e-9
    assert 0 <= check["alone_against_padded"] < 1e-9


def test_dropout_is_refused(rollouts):
    model = tiny_model("qwen2")
    model.config.attention_dropout = 0.5
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    model.train()
    with pytest.raises(ValueError, match=r"two answers for the same input .* call model\.eval\(\)"):
        gradients.measure(model, rollouts, progress=False)


def test_sequences_without_a_finite_gradient_are_named_and_left_out(monkeypatch):
    rollouts = ragged_rollouts(5)

    poisoned = changed(ghost_engine, lambda norms, chunk: np.where((chunk.rows == 3)[:, None], np.nan, norms))
    clean = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    monkeypatch.setitem(gradients.ENGINES, "ghost", poisoned)
    with pytest.warns(RuntimeWarning, match=r"1 of 5 sequences have a gradient that is not finite \(p1/1\)"):
        measured = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    kept = [0, 1, 2, 4]
    np.testing.assert_allclose(measured.sq_norms, clean.sq_norms[kept])
    np.testing.assert_allclose(measured.sketches, clean.sketches[kept])
    assert measured.metadata["not_finite"] == [["p1", 1]]
    assert [len(values) for values in measured.logprobs] == [len(clean.logprobs[row]) for row in kept]


def test_token_ids_of_another_vocabulary_are_refused():
    rollouts = Rollouts.from_sequences([[1], [2]], [[5], [99]], [0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="completion_tokens hold the token id 99, but .* a vocabulary of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False)


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
    monkeypatch.setattr("gradstats.gradients.chunking.MOST_PADDING", 1.0)
    with pytest.warns(RuntimeWarning, match=r"memory ran out on \d+ sequences of \d+ tokens together: continuing with"):
        measured = session.measure(rollouts)
    assert 30 <= session.token_budget < 120
    assert_same(replace(measured, ref_logprobs=measured.logprobs), replace(whole, ref_logprobs=whole.logprobs))


def test_memory_that_runs_out_on_one_sequence_ends_the_run(rollouts):
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(engine="ghost", sketch_dim=None)
    )

    def never(*_):
        raise torch.OutOfMemoryError("out of memory")

    session.engine = never
    with pytest.raises(RuntimeError, match="memory ran out on a single sequence of"):
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


def test_bfloat16_reports_its_deviation_from_float32(rollouts):
    model = tiny_model("qwen2", dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match=r"in torch\.bfloat16 squared norms deviate by up to \d+\.\d% from those in"):
        measured = gradients.measure(model, rollouts, engine="ghost", sketch_dim=32, progress=False)
    check = measured.metadata["self_check"]
    assert 1e-4 < check["deviation_from_float32"] < 0.5
    wide = gradients.measure(model.float(), rollouts, engine="loop", sketch_dim=32, progress=False)
    assert wide.metadata["self_check"]["deviation_from_float32"] is None
    rows = two_rows(rollouts)
    off = np.abs(measured.sq_norms / wide.sq_norms - 1)[rows].max()
    assert off < 2 * check["deviation_from_float32"] + 0.02
    assert measured.sketches.dtype == np.float32


def test_progress_counts_every_sequence_and_token():
    rollouts = ragged_rollouts(6)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, MeasurementSection(token_budget=40))
    counted = np.zeros(2, dtype=int)
    session.measure(rollouts, lambda n_sequences, n_tokens: counted.__iadd__([n_sequences, n_tokens]))
    assert counted[0] == 6
    assert counted[1] >= sum(len(c) for c in rollouts.tokens("completion_tokens"))
