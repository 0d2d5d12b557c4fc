"""Exact scores of the heaviest tokens against one autograd pass per token, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from gradient_models import any_model
from token_gradients import flat, token_gradients

import gradstats.gradients as gradients


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_probes": -1}, "token_probes is -1: it must be an integer in .0, 65536. .random directions"),
        (
            {"token_exact": -2},
            "token_exact is -2: it must be an integer of at least 0, or a number of at least 0 .tokens of each",
        ),
        ({"token_exact": 1.5}, r"token_exact is 1\.5: give a number of tokens, or a share"),
        ({"token_exact": 1.0}, r"token_exact is 1\.0, neither a share below 1 nor a whole number"),
        (
            {"token_probes": 2, "token_seed": -1},
            "token_seed is -1: it must be an integer of at least 0 .seed of the random directions",
        ),
    ],
)
def test_bad_token_settings_are_refused(options, message, rollouts):
    with pytest.raises(ValueError, match=message):
        gradients.measure(tiny_model("gpt2"), rollouts, progress=False, **options)
