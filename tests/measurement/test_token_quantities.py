"""Quantities of a measurement with one value per token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_model
from measured_by_hand import measured_by_hand

import gradstats.gradients as gradients


def test_too_few_probes_give_nan_and_say_so(rollouts):
    options = {"sketch_dim": None, "progress": False}
    none = gradients.measure(tiny_model("gpt2"), rollouts, token_exact=1, **options)
    with pytest.warns(RuntimeWarning, match="token energies are NaN .* measure with token_probes=32"):
        energy = none.token_energy
    assert [int(np.isfinite(values).sum()) for values in energy] == [1] * 5
    one = gradients.measure(tiny_model("gpt2"), rollouts, token_probes=1, **options)
    assert all(np.isfinite(values).all() for values in one.token_energy)
    with pytest.warns(RuntimeWarning, match="standard errors of cumulative energies are NaN"):
        assert all(np.isnan(values).all() for values in one.cumulative_energy_stderr)


def test_token_energies_are_exact_on_heavy_tokens_and_a_mean_of_squares_elsewhere():
    measured = measured_by_hand()
    energy, cross = measured.token_energy, measured.token_cross
    for row, heavy in enumerate(measured.heavy_positions):
        light = np.setdiff1d(np.arange(measured.lengths[row]), heavy)
        squares = np.square(measured.token_projections[row].astype(float)).mean(axis=1)
        np.testing.assert_allclose(energy[row][light], squares[light])
        np.testing.assert_allclose(energy[row][heavy], measured.heavy_sq_norms[row])
        np.testing.assert_allclose(measured.cumulative_energy[row], np.cumsum(energy[row]))
        assert np.isfinite(cross[row]).all()
    without = measured_by_hand(tokens=False)
    assert (without.n_token_probes, without.token_scores(), without.token_energy, without.token_cross) == (
        0,
        None,
        None,
        None,
    )


def test_energies_without_probes_are_nan_with_a_warning():
    measured = replace(measured_by_hand(), token_projections=None)
    with pytest.warns(RuntimeWarning, match="token energies are NaN .* since token_probes is 0: measure with"):
        assert np.isnan(measured.token_energy[-1]).any()
