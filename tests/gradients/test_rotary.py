"""Rotary factors that depend on the padded length: sequences are measured as if each were alone, or refused."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from conftest import tiny_model
from gradient_models import oracle
from rotary_models import LIMIT, LONG, lengths_around_the_limit, rotary_model

import gradstats.gradients as gradients
from gradstats.gradients.attention import forget_lengths, length_classes, refuse_mixed_lengths, same_class
from gradstats.gradients.objective import make_chunk, plan_chunks
from gradstats.gradients.parameters import select_parameters
from gradstats.gradients.session import token_statistics
from gradstats.policy.policy import Policy


def alone(model, rollouts):
    """Squared norms by parameter, each sequence under a model that has seen no other."""
    found = [oracle(copy.deepcopy(model), rollouts.select([row])) for row in range(len(rollouts))]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "by layer"])
@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_every_engine_equals_sequences_alone(kind, engine):
    model, rollouts = rotary_model(kind), lengths_around_the_limit()
    if (kind, engine) == ("longrope", "vmap"):  # the rotary embedding copies the factors into its buffer
        with pytest.raises(gradients.UnsupportedModuleError, match=r'"vmap" cannot trace .* use engine="loop"'):
            gradients.measure(model, rollouts, engine=engine, progress=False)
        return
    expected = alone(model, rollouts)
    tolerance = 1e-6 if kind == "by layer" else 1e-9  # Gemma's norms compute in float32
    for _ in range(2):  # the factors that the longest sequence left do not reach the shorter ones
        measured = gradients.measure(
            model, rollouts, engine=engine, blocks="parameter", sketch_dim=None, progress=False
        )
        for name, values in measured.sq_norms_by_block.items():
            np.testing.assert_allclose(values, expected[name], rtol=tolerance, atol=1e-18, err_msg=name)
    assert measured.metadata["engines_passed_over"] == {}


def test_the_factors_matter():
    model, rollouts = rotary_model("longrope"), lengths_around_the_limit()
    other = copy.deepcopy(model)
    other.model.rotary_emb.config.rope_parameters["long_factor"] = LONG["short_factor"]
    beyond = rollouts.times > LIMIT
    ratio = sum(alone(other, rollouts).values()) / sum(alone(model, rollouts).values())
    assert (np.abs(ratio - 1)[beyond] > 1e-3).all()
    np.testing.assert_allclose(ratio[~beyond], 1)


def test_token_scores_and_a_reference_whose_factors_depend_on_the_length():
    rollouts = lengths_around_the_limit()
    model, reference = tiny_model("llama"), rotary_model("dynamic")
    measured = gradients.measure(model, rollouts, reference_policy=reference, sketch_dim=None, progress=False)
    for row, found in enumerate(measured.ref_logprobs):
        of_row = gradients.measure(reference, rollouts.select([row]), engine="loop", sketch_dim=None, progress=False)
        np.testing.assert_allclose(found, of_row.logprobs[0], rtol=1e-9)
    options = {"token_probes": 2, "token_exact": 2, "sketch_dim": None, "progress": False}
    together = gradients.measure(reference, rollouts, **options)
    for row in range(len(rollouts)):
        one = gradients.measure(reference, rollouts.select([row]), **options)
        np.testing.assert_allclose(together.token_projections[row], one.token_projections[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(together.heavy_sq_norms[row], one.heavy_sq_norms[0], rtol=1e-9)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_chunks_hold_sequences_with_the_factors_that_they_have_alone(kind):
    model, rollouts = rotary_model(kind), lengths_around_the_limit()
    selection = select_parameters(model)
    for chunk in plan_chunks(rollouts, Policy(model), selection):
        assert same_class(model, rollouts, list(chunk)) == [list(chunk)]
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


def test_the_check_of_a_model_compares_sequences_that_may_be_padded_together():
    assert gradients.check_engines(rotary_model("dynamic"), lengths_around_the_limit(), dtypes=["float64"]).attrs[
        "passed"
    ]
