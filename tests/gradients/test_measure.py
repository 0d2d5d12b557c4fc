"""The measuring run: its self-check, what it refuses, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from gradient_models import assert_same
from transformers import AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.batch import Batch
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.policy.policy import Policy


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


def test_gradient_checkpointing_is_refused_by_vmap(rollouts):
    model = tiny_model("qwen2")
    model.model.gradient_checkpointing = True
    with pytest.raises(gradients.UnsupportedModuleError, match="cannot go through gradient checkpointing"):
        gradients.measure(model, rollouts, engine="vmap", progress=False)


def test_a_model_of_no_kind_is_refused(rollouts):
    with pytest.raises(TypeError, match="policy is a str: pass a Policy"):
        gradients.measure("gpt2", rollouts, progress=False)


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
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(sketch_dim=32), reference_policy=reference
    )
    for number, rows in enumerate(([0, 1], [2, 3, 4], [5])):
        some = {name: [weights[row] for row in rows] for name, weights in weightings.items()}
        session.measure(rollouts.select(rows), token_weights=some).save(tmp_path / f"shard-{number}")
    (tmp_path / ".shard-3.77.partial").mkdir()
    assert_same(read_measurement(tmp_path), whole)


def test_measurements_of_different_weightings_or_references_are_not_joined():
    rollouts = ragged_rollouts(3)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, MeasurementSection(sketch_dim=None))
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
