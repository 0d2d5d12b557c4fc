"""The measuring run: its self-check, what it refuses, and what it leaves behind."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.chunking import plan_chunks
from gradstats.gradients.vmap import vmap_engine
from gradstats.measurement import Measurement, read_measurement
from gradstats.policy import Policy
from gradstats.rollouts import Rollouts


def test_a_wrong_engine_is_refused_by_the_self_check(monkeypatch, rollouts):
    def off_by_a_thousandth(policy, chunk, selection, sketch):
        result = vmap_engine(policy, chunk, selection, sketch)
        return type(result)(chunk, result.sq_norms_by_block * 1.001, None, result.statistics)

    monkeypatch.setitem(gradients.ENGINES, "vmap", off_by_a_thousandth)
    with pytest.raises(gradients.SelfCheckError, match=r'engine "vmap" fails its self-check .* deviate by 1\.00e-03'):
        gradients.measure(tiny_model("qwen2"), rollouts, progress=False)


def test_an_engine_that_padding_disturbs_is_refused(monkeypatch, rollouts):
    def disturbed(policy, chunk, selection, sketch):
        result = vmap_engine(policy, chunk, selection, sketch)
        padding = 1.0 + 0.01 * (len(chunk.rows) > 1)
        return type(result)(chunk, result.sq_norms_by_block * padding, None, result.statistics)

    monkeypatch.setitem(gradients.ENGINES, "vmap", disturbed)
    with pytest.raises(gradients.SelfCheckError, match=r"by 1\.00e-02 between a sequence alone and padded"):
        gradients.measure(tiny_model("qwen2", dtype=torch.float32), rollouts, progress=False)


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

    def poisoned(policy, chunk, selection, sketch):
        result = vmap_engine(policy, chunk, selection, sketch)
        norms = result.sq_norms_by_block.copy()
        norms[chunk.rows == 3] = np.nan
        return type(result)(chunk, norms, result.sketches, result.statistics)

    clean = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    monkeypatch.setitem(gradients.ENGINES, "vmap", poisoned)
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
        ({"engine": "ghosts"}, "engine is 'ghosts': choose one of auto, vmap, loop"),
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
    with pytest.raises(ValueError, match="cannot go through gradient checkpointing"):
        gradients.measure(model, rollouts, progress=False)


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
    one_gradient = 2 * 4 * selection.n_parameters / 1024**3
    by_memory = plan_chunks(rollouts, policy, selection, memory_gib=3.5 * one_gradient)
    assert max(len(chunk) for chunk in by_memory) == 3


def test_a_measurement_reads_back_as_it_was(tmp_path):
    measured = gradients.measure(tiny_model("qwen2"), ragged_rollouts(5, masked=True), sketch_dim=32, progress=False)
    measured.save(tmp_path / "whole")
    read = read_measurement(tmp_path / "whole")
    assert_same(read, measured)
    assert read.metadata == measured.metadata


def test_a_folder_of_shards_reads_as_one_measurement(tmp_path):
    rollouts = ragged_rollouts(6)
    whole = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=32, progress=False)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, sketch_dim=32)
    for number, rows in enumerate(([0, 1], [2, 3, 4], [5])):
        session.measure(rollouts.select(rows)).save(tmp_path / f"shard-{number}")
    (tmp_path / ".shard-3.77.partial").mkdir()
    assert_same(read_measurement(tmp_path), whole)


def assert_same(left: Measurement, right: Measurement):
    pd.testing.assert_frame_equal(left.rollouts.frame, right.rollouts.frame)
    pd.testing.assert_frame_equal(left.sq_norms_by_block, right.sq_norms_by_block)
    np.testing.assert_allclose(left.sketches, right.sketches, rtol=1e-9, atol=1e-10)
    for name in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms"):
        for ours, theirs in zip(getattr(left, name), getattr(right, name), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


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
