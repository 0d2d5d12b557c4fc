"""Estimates from the probes of token scores against exact token gradients."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_rollouts
from gradient_models import any_model
from token_gradients import flat, token_gradients

import gradstats.gradients as gradients
from gradstats.measurement.token_scores import TokenScores, relative_error_of_total, remark_on_precision

N_PROBES = 960


@pytest.fixture(scope="module", params=["qwen2", "gpt2"])
def many_probes(request):
    """A measurement with many directions, and the exact token gradients."""
    model, rollouts = any_model(request.param), ragged_rollouts(4, masked=True)
    measured = gradients.measure(model, rollouts, token_probes=N_PROBES, token_exact=2, sketch_dim=None, progress=False)
    return measured, [flat(rows) for rows in token_gradients(model, rollouts)]


def test_energies_are_unbiased_and_their_errors_are_as_predicted(many_probes):
    measured, exact = many_probes
    for projected, tokens, mask in zip(measured.token_projections, exact, measured.rollouts.masks, strict=True):
        energies = np.square(tokens[mask]).sum(axis=1)
        squares = np.square(projected[mask])
        errors = (squares.mean(axis=1) - energies) / (energies * np.sqrt(2 / N_PROBES))
        assert np.abs(errors).max() < 4
        variances = squares.var(axis=1) / (2 * np.square(energies))
        assert 0.7 < np.median(variances) < 1.25
        assert variances.max() < 1 + 3 / 16 + 0.8


def test_cumulative_energies_and_the_norm_of_the_sum_lie_within_their_standard_errors(many_probes):
    measured, exact = many_probes
    n_probes, errors, norm_errors = 64, [], []  # in units of their standard errors
    for row, tokens in enumerate(exact):
        whole = measured.token_scores()[row]
        if not whole.light.any():
            continue
        places = np.flatnonzero(whole.light)[[0, -1]]
        cumulative = np.cumsum(np.square(tokens).sum(axis=1))
        sq_norm = np.square(tokens.sum(axis=0)).sum()
        for first in range(0, N_PROBES, n_probes):
            part = replace(whole, projections=whole.projections[:, first : first + n_probes])
            off = (part.cumulative_energy() - cumulative)[places]
            errors.append(off / part.cumulative_energy_stderr()[places])
            squares = np.square(part.projections.sum(axis=0))
            norm_errors.append((squares.mean() - sq_norm) / (squares.std(ddof=1) / np.sqrt(n_probes)))
    for found in (np.array(errors), np.array(norm_errors)):
        # Nominally 95 % and 1; the mean of 64 squares is skewed still, and there are 15 of them a sequence.
        assert np.mean(np.abs(found) <= 1.96) > 0.85
        assert 0.7 < np.sqrt(np.mean(np.square(found))) < 1.45


def test_inner_products_with_the_sum_are_unbiased(many_probes):
    measured, exact = many_probes
    for cross, tokens in zip(measured.token_cross, exact, strict=True):
        total = tokens.sum(axis=0)
        scale = np.linalg.norm(tokens, axis=1) * np.linalg.norm(total)
        assert (np.abs(cross - tokens @ total) <= 5 * np.sqrt(2 / N_PROBES) * scale).all()


def by_hand(projections=((1.0, 3.0), (2.0, -2.0), (1.0, 0.0)), sketches=None):
    """Three tokens of which the second was measured exactly, with the squared norm 9; the third does not count."""
    probes = None if projections is None else np.array(projections)
    return TokenScores(probes, np.array([1]), np.array([9.0]), sketches, np.array([True, True, False]))


def test_quantities_of_three_tokens_by_hand():
    scores = by_hand()
    assert scores.n_probes == 2
    assert scores.light.tolist() == [True, False, False]
    # (1² + 3²)/2 on the light token, 9 on the exact one.
    np.testing.assert_allclose(scores.energy(), [5, 9, 0])
    np.testing.assert_allclose(scores.cumulative_energy(), [5, 14, 14])
    np.testing.assert_allclose(scores.energy_stderr(), [5 * np.sqrt(2 / 4), 0, 0])
    # The two probes give 1 and 9 for the light token: standard deviation √32, over √2.
    np.testing.assert_allclose(scores.cumulative_energy_stderr(), [4, 4, 4])
    # P = (4, 1): (1·4 + 3·1)/2 on the light token; (2·4 − 2·1)/2 on the exact one, with 9 for its own (4 + 4)/2.
    np.testing.assert_allclose(scores.cross(None), [3.5, 3 + 9 - 4, 0])
    # With sketches ⟨s, S⟩ = 9 + ⟨Cs, C(S − s)⟩ = 9 + (2, 1)·(1, −1).
    sketched = by_hand(sketches=np.array([[2.0, 1.0]]))
    np.testing.assert_allclose(sketched.cross(np.array([3.0, 0.0])), [3.5, 10, 0])
    without = by_hand(projections=None, sketches=np.array([[2.0, 1.0]]))  # of probes: only exact tokens have values
    np.testing.assert_array_equal(without.energy(), [np.nan, 9, 0])
    np.testing.assert_array_equal(without.cumulative_energy_stderr(), [np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(without.cross(np.array([3.0, 0.0])), [np.nan, 10, 0])


def test_the_remark_states_the_precision_and_a_remedy_where_it_is_poor():
    poor, good = by_hand(), by_hand(projections=((1.0, 1.0), (0.0, 0.0), (0.0, 0.0)))
    assert relative_error_of_total([poor, poor]) == pytest.approx(4 / 14)
    remarks = [remark_on_precision([one]) for one in (poor, good)]
    whole = "W_T has a median relative standard error of {}, from 2 probes and 1 exact tokens"
    assert remarks[0].startswith(whole.format("28.6%") + ", which is poor: raise token_exact, for example to 16, or")
    assert remarks[1] == whole.format("0.0%")
