"""Exact scores of the heaviest tokens against one autograd pass per token, in float64."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model, random_weightings
from token_gradients import flat, token_gradients

import gradstats.gradients as gradients
from gradstats.gradients.tokens import scores as check
from gradstats.gradients.tokens.scores import check_projections
from gradstats.policy.policy import Policy


def test_a_weight_read_outside_its_module_is_refused_by_the_self_check(rollouts):
    model = tiny_model("gpt2")
    mlp, other = model.transformer.h[0].mlp, model.transformer.h[1].mlp
    forward = mlp.forward
    mlp.forward = lambda states: forward(states) + states @ other.c_fc.weight @ other.c_proj.weight
    with pytest.raises(gradients.SelfCheckError, match="token_probes fail their self-check"):
        gradients.measure(model, rollouts, engine="loop", token_probes=2, sketch_dim=None, progress=False)


def test_a_sound_model_deviates_by_rounding_and_a_wrong_projection_by_its_error(monkeypatch):
    model, rollouts = tiny_model("gpt2"), ragged_rollouts(4, masked=True)
    policy, selection = Policy(model, temperature=0.7), gradients.select_parameters(model)
    assert check_projections(policy, rollouts, selection, 3) < 1e-10
    project = check.project_tokens
    monkeypatch.setattr(check, "project_tokens", lambda *args: project(*args) * 1.01)
    with pytest.raises(
        gradients.SelfCheckError, match=r"within \d\.\d\de-0[12] of the gradient's norm, where 1e-05 is"
    ):
        check_projections(policy, rollouts, selection, 3)


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_the_heaviest_tokens_are_measured_exactly(engine):
    model, rollouts = any_model("llama", True), ragged_rollouts(4, masked=True)
    measured = gradients.measure(model, rollouts, engine=engine, token_exact=3, sketch_dim=64, progress=False)
    sketch = gradients.CountSketch(64, version=measured.metadata["sketch_version"])
    for row, rows in enumerate(token_gradients(model, rollouts)):
        proxy = 1 - 2 * np.exp(measured.logprobs[row]) + measured.sum_pi_squared[row]
        counted = np.flatnonzero(rollouts.masks[row])
        expected = np.sort(counted[np.argsort(-proxy[counted])][:3])
        positions = measured.heavy_positions[row]
        np.testing.assert_array_equal(positions, expected)
        energies = np.square(flat(rows)).sum(axis=1)
        np.testing.assert_allclose(measured.heavy_sq_norms[row], energies[positions], rtol=1e-9)
        for place, position in enumerate(positions):
            projected = torch.zeros(1, 64, dtype=torch.float64)
            for name, part in rows[position].items():
                sketch.add(projected, name, part[None])
            np.testing.assert_allclose(measured.heavy_sketches[row][place], projected[0], rtol=1e-8, atol=1e-9)
    assert measured.token_projections is None


def test_all_tokens_measured_exactly_give_exact_energies():
    model, rollouts = any_model("gpt2"), ragged_rollouts(3, masked=True)
    measured = gradients.measure(model, rollouts, token_exact=10_000, sketch_dim=2**14, progress=False)
    for row, rows in enumerate(token_gradients(model, rollouts)):
        tokens = flat(rows)
        energies = np.square(tokens).sum(axis=1)
        np.testing.assert_allclose(measured.token_energy[row], energies, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(measured.cumulative_energy[row], np.cumsum(energies), rtol=1e-9)
        np.testing.assert_array_equal(measured.token_energy_stderr[row], 0)
        np.testing.assert_array_equal(measured.cumulative_energy_stderr[row], 0)
        total = tokens.sum(axis=0)
        within = 5 * np.sqrt(energies) * np.linalg.norm(total) * np.sqrt(2 / 2**14)
        assert (np.abs(measured.token_cross[row] - tokens @ total) <= within).all()


def test_a_share_takes_as_many_tokens_as_hold_it():
    rollouts = ragged_rollouts(5, masked=True)
    measured = gradients.measure(tiny_model("gpt2"), rollouts, token_exact=0.5, sketch_dim=None, progress=False)
    for row in range(5):
        proxy = (1 - 2 * np.exp(measured.logprobs[row]) + measured.sum_pi_squared[row]) * rollouts.masks[row]
        heavy = measured.heavy_positions[row]
        assert proxy[heavy].sum() >= 0.5 * proxy.sum()
        assert proxy[heavy].sum() - proxy[heavy].min() < 0.5 * proxy.sum()


@pytest.mark.parametrize("engine", ["ghost", "vmap", "loop"])
def test_token_weights_give_the_gradient_of_the_weighted_sum(engine):
    model, rollouts = tiny_model("llama", tied=True), ragged_rollouts(4, masked=True)
    weightings = random_weightings(rollouts)
    options = {"engine": engine, "sketch_dim": 64, "progress": False}
    measured = gradients.measure(model, rollouts, token_weights=weightings, **options)
    plain = gradients.measure(model, rollouts, **options)
    np.testing.assert_allclose(measured.sq_norms, plain.sq_norms, rtol=1e-10)
    sketch = gradients.CountSketch(64, version=plain.metadata["sketch_version"])
    scores = token_gradients(model, rollouts)
    for name, weights in weightings.items():
        for row in range(4):
            projected, sq_norm = torch.zeros(1, 64, dtype=torch.float64), 0.0
            for parameter in scores[row][0]:
                part = sum(w * score[parameter] for w, score in zip(weights[row], scores[row], strict=True))
                sketch.add(projected, parameter, part[None])
                sq_norm += part.square().sum().item()
            np.testing.assert_allclose(measured.weighted[name].sq_norms[row], sq_norm, rtol=1e-9)
            np.testing.assert_allclose(measured.weighted[name].sketches[row], projected[0], rtol=1e-8, atol=1e-9)


def test_one_list_of_token_weights_has_a_name_of_its_own(rollouts):
    twos = [2 * np.ones(len(tokens)) for tokens in rollouts.tokens("completion_tokens")]
    measured = gradients.measure(tiny_model("qwen2"), rollouts, sketch_dim=None, token_weights=twos, progress=False)
    np.testing.assert_allclose(measured.weighted["weighted"].sq_norms, 4 * measured.sq_norms, rtol=1e-10)


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
