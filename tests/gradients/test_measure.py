"""The measuring run: its self-check, what it refuses, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from transformers import AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.estimators.batch import Batch
from gradstats.gradients.checks.self_check import two_rows
from gradstats.gradients.chunking import plan_chunks
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.policy.policy import Policy
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "ghosts"}, "engine is 'ghosts': choose one of auto, ghost, vmap, loop"),
        (
            {"params": "nothing_like_it"},
            r"matches no trainable parameter; some that exist: model\.embed_tokens\.weight",
        ),
        ({"params": "("}, "is not a regular expression"),
        ({"blocks": "rows"}, "blocks is 'rows'"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"memory_gib": 0.0}, "memory_gib is 0.0"),
    ],
)
def test_bad_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False, **options)


def test_token_ids_of_another_vocabulary_are_refused():
    rollouts = Rollouts.from_sequences([[1], [2]], [[5], [99]], [0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="completion_tokens hold the token id 99, but .* a vocabulary of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False)


def test_gradient_checkpointing_is_refused_by_vmap(rollouts):
    model = tiny_model("qwen2")
    model.model.gradient_checkpointing = True
    with pytest.raises(gradients.UnsupportedModuleError, match="cannot go through gradient checkpointing"):
        gradients.measure(model, rollouts, engine="vmap", progress=False)


def test_a_model_of_no_kind_is_refused(rollouts):
    with pytest.raises(TypeError, match="policy is a str: pass a Policy"):
        gradients.measure("gpt2", rollouts, progress=False)


def test_chunks_hold_like_lengths_within_the_budget():
    rollouts = ragged_rollouts(40, longest=50)
    policy = Policy(tiny_model("qwen2", dtype=torch.float32))
    selection = gradients.select_parameters(policy.model)
    chunks = plan_chunks(rollouts, policy, selection, token_budget=120)
    times = [
        len(p) + len(c)
        for p, c in zip(rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), strict=True)
    ]
    assert sorted(row for chunk in chunks for row in chunk) == list(range(40))
    assert all(len(chunk) * max(times[row] for row in chunk) <= 120 for chunk in chunks)
    ordered = [times[row] for chunk in chunks for row in chunk]
    assert ordered == sorted(ordered)
    padding = [
        1 - sum(times[row] for row in chunk) / (len(chunk) * max(times[row] for row in chunk)) for chunk in chunks
    ]
    assert max(padding) <= 0.1
    assert len(chunks) < 20
    one_gradient = 2 * 4 * selection.n_parameters / 1024**3
    by_memory = plan_chunks(rollouts, policy, selection, memory_gib=3.5 * one_gradient)
    assert max(len(chunk) for chunk in by_memory) == 3
    weighted = plan_chunks(rollouts, policy, selection, memory_gib=6.5 * one_gradient, gradients_held=3)
    assert max(len(chunk) for chunk in weighted) == 2
    ghost = plan_chunks(rollouts, policy, selection, memory_gib=3.5 * one_gradient, gradients_held=0)
    assert max(len(chunk) for chunk in ghost) > 3
    some = plan_chunks(rollouts, policy, selection, rows=np.array([3, 17, 5]))
    assert sorted(row for chunk in some for row in chunk) == [3, 5, 17]


def random_weightings(rollouts, n=2):
    """Named token weights, some of them zero or negative."""
    rng = np.random.default_rng(3)
    return {
        f"weights {number}": [
            rng.normal(size=len(tokens)) * (rng.random(len(tokens)) < 0.7)
            for tokens in rollouts.tokens("completion_tokens")
        ]
        for number in range(n)
    }


def test_a_measurement_reads_back_as_it_was(tmp_path):
    rollouts = ragged_rollouts(5, masked=True)
    measured = gradients.measure(
        tiny_model("qwen2"),
        rollouts,
        sketch_dim=32,
        token_weights=random_weightings(rollouts),
        reference_policy=tiny_model("llama"),
        progress=False,
    )
    measured.save(tmp_path / "whole")
    read = read_measurement(tmp_path / "whole")
    assert_same(read, measured)
    assert read.metadata == measured.metadata


def test_a_folder_of_shards_reads_as_one_measurement(tmp_path):
    rollouts = ragged_rollouts(6)
    weightings, reference = random_weightings(rollouts), tiny_model("llama")
    whole = gradients.measure(
        tiny_model("qwen2"),
        rollouts,
        sketch_dim=32,
        token_weights=weightings,
        reference_policy=reference,
        progress=False,
    )
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, sketch_dim=32, reference_policy=reference)
    for number, rows in enumerate(([0, 1], [2, 3, 4], [5])):
        some = {name: [weights[row] for row in rows] for name, weights in weightings.items()}
        session.measure(rollouts.select(rows), token_weights=some).save(tmp_path / f"shard-{number}")
    (tmp_path / ".shard-3.77.partial").mkdir()
    assert_same(read_measurement(tmp_path), whole)


def assert_same(left: Measurement, right: Measurement):
    pd.testing.assert_frame_equal(left.rollouts.frame, right.rollouts.frame)
    assert list(left.weighted) == list(right.weighted)
    for ours, theirs in zip((left, *left.weighted.values()), (right, *right.weighted.values()), strict=True):
        pd.testing.assert_frame_equal(ours.sq_norms_by_block, theirs.sq_norms_by_block)
        np.testing.assert_allclose(ours.sketches, theirs.sketches, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(ours.gram(), theirs.gram(), rtol=1e-9, atol=1e-9)
    for name in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms", "ref_logprobs"):
        for ours, theirs in zip(getattr(left, name), getattr(right, name), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_measurements_of_different_weightings_or_references_are_not_joined():
    rollouts = ragged_rollouts(3)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, sketch_dim=None)
    plain = session.measure(rollouts)
    weighted = session.measure(rollouts, token_weights=random_weightings(rollouts))
    with pytest.raises(ValueError, match="differ in the names of their token_weights"):
        Measurement.concatenate([plain, weighted])
    with pytest.raises(ValueError, match="differ in ref_logprobs"):
        Measurement.concatenate([plain, replace(plain, ref_logprobs=plain.logprobs)])


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_token_weights_give_the_gradient_of_the_weighted_sum(engine):
    model = tiny_model("llama", tied=True)
    rollouts = ragged_rollouts(4, masked=True)
    weightings = random_weightings(rollouts)
    measured = gradients.measure(
        model, rollouts, engine=engine, sketch_dim=64, token_weights=weightings, progress=False
    )
    plain = gradients.measure(model, rollouts, engine=engine, sketch_dim=64, progress=False)
    np.testing.assert_allclose(measured.sq_norms, plain.sq_norms, rtol=1e-10)
    sketch = gradients.CountSketch(64)
    for name, weights in weightings.items():
        for row in range(4):
            gradient = weighted_gradient(model, rollouts, row, weights[row])
            expected = sum(part.square().sum().item() for part in gradient.values())
            np.testing.assert_allclose(measured.weighted[name].sq_norms[row], expected, rtol=1e-9)
            projected = torch.zeros(1, 64, dtype=torch.float64)
            for parameter, part in gradient.items():
                sketch.add(projected, parameter, part[None])
            np.testing.assert_allclose(measured.weighted[name].sketches[row], projected[0], rtol=1e-8, atol=1e-9)


def weighted_gradient(model, rollouts, row, weights):
    """Σ_t m_t w_t ∇log π(y_t), token by token."""
    prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
    logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0]
    value = sum(
        weights[place] * float(rollouts.masks[row][place]) * logits[len(prompt) + place - 1].log_softmax(0)[token]
        for place, token in enumerate(completion)
    )
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(value, list(named.values())), strict=True))


def test_one_list_of_token_weights_has_a_name_of_its_own(rollouts):
    ones = [np.ones(len(tokens)) for tokens in rollouts.tokens("completion_tokens")]
    measured = gradients.measure(
        tiny_model("qwen2"), rollouts, sketch_dim=None, token_weights=[2 * row for row in ones], progress=False
    )
    np.testing.assert_allclose(measured.weighted["weighted"].sq_norms, 4 * measured.sq_norms, rtol=1e-10)
    with pytest.raises(ValueError, match="holds no sketches"):
        measured.weighted["weighted"].gram()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"token_weights 'weighted' has 4 rows for 5 rollouts"),
        (lambda rows: [*rows[:-1], [1.0] * 99], r"has the shape \(99,\) in row 4, whose completion has \d+ tokens"),
        (lambda rows: [[np.nan], *rows[1:]], r"is not finite in row 0"),
    ],
)
def test_token_weights_of_another_shape_are_refused(change, message, rollouts):
    ones = [[1.0] * len(tokens) for tokens in rollouts.tokens("completion_tokens")]
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("qwen2"), rollouts, token_weights=change(ones), progress=False)


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
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, engine="ghost", sketch_dim=32)
    session.engine = small
    monkeypatch.setattr("gradstats.gradients.chunking.MOST_PADDING", 1.0)
    with pytest.warns(RuntimeWarning, match=r"memory ran out on \d+ sequences of \d+ tokens together: going on with"):
        measured = session.measure(rollouts)
    assert 30 <= session.token_budget < 120
    assert_same(replace(measured, ref_logprobs=measured.logprobs), replace(whole, ref_logprobs=whole.logprobs))


def test_memory_that_runs_out_on_one_sequence_ends_the_run(rollouts):
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, engine="ghost", sketch_dim=None)

    def never(*_):
        raise torch.OutOfMemoryError("out of memory")

    session.engine = never
    with pytest.raises(RuntimeError, match="memory ran out on a single sequence of"):
        session.measure(rollouts.select([1]))


def test_other_errors_of_an_engine_are_not_taken_for_memory(rollouts):
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, engine="ghost", sketch_dim=None)

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


def test_broken_or_missing_measurements_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no measurement"):
        read_measurement(tmp_path)
    measured = gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), sketch_dim=8, progress=False)
    measured.save(tmp_path / "m")
    tensors = tmp_path / "m" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cannot be read .*: remove it and measure again"):
        read_measurement(tmp_path / "m")


def test_measurements_of_different_sketches_are_not_joined():
    parts = [
        gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), sketch_seed=seed, sketch_dim=8, progress=False)
        for seed in (0, 1)
    ]
    with pytest.raises(ValueError, match=r"measurements differ in sketch_seed \(0, 1\)"):
        Measurement.concatenate(parts)


def test_a_gram_matrix_needs_sketches():
    measured = gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), sketch_dim=None, progress=False)
    with pytest.raises(ValueError, match="holds no sketches: measure with sketch_dim"):
        measured.gram()


def test_progress_counts_every_sequence_and_token():
    rollouts = ragged_rollouts(6)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, token_budget=40)
    counted = np.zeros(2, dtype=int)
    session.measure(rollouts, lambda n_sequences, n_tokens: counted.__iadd__([n_sequences, n_tokens]))
    assert counted[0] == 6
    assert counted[1] >= sum(len(c) for c in rollouts.tokens("completion_tokens"))
