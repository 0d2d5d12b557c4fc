"""Correlation, growth, concentration and drift of token scores compared with brute force on exact scores."""

from dataclasses import replace

import numpy as np
import pytest
from probed_policies import enumerated, probed

from gradstats.stats import (
    alpha_report,
    check_on_policy,
    concentration,
    drift_along,
    fit_energy_scaling,
    local_slope,
    surprise_along,
    token_correlation,
)
from gradstats.stats.variance.probe_error import probed_statistic

POLICY = enumerated()


def drawn(n_probes=8, n_heavy=4, n_groups=40, seed=0):
    batch, _, scores = POLICY.sample(n_groups, 3, seed)
    return probed(batch, scores, n_probes, n_heavy, np.random.default_rng(seed)), batch, scores


def brute_correlation(scores, lengths, distances):
    top = bottom = 0.0
    for s, length in zip(scores, lengths, strict=True):
        for distance in distances:
            for t in range(length - distance):
                top += s[t] @ s[t + distance]
                bottom += 0.5 * (s[t] @ s[t] + s[t + distance] @ s[t + distance])
    return top / bottom


def test_correlation_is_that_of_exact_scores():
    measured, batch, scores = drawn()
    profile = token_correlation(measured)
    assert profile.last.tolist() == [1, 2, 3]
    for place, distance in enumerate([1, 2, 3]):
        expected = brute_correlation(scores, batch.lengths, [distance])
        assert profile.values[place] == pytest.approx(expected, rel=1e-9)
    assert token_correlation(measured, max_distance=2).last.tolist() == [1, 2]


def test_correlation_from_probes_is_unbiased_and_knows_its_error():
    """Profiles of the same completions over draws of the probes."""
    batch, _, scores = POLICY.sample(20, 3, 0)
    rng = np.random.default_rng(1)
    top = [token_correlation(probed(batch, 3.0 * scores, 6, 1, rng), max_distance=1).values[0] for _ in range(100)]
    # Denominators are nearly exact with the heavy tokens known, so that the quotient is nearly unbiased.
    expected = brute_correlation(scores, batch.lengths, [1])
    assert np.mean(top) == pytest.approx(expected, abs=4 * np.std(top) / np.sqrt(100) + 0.003)


def test_drift_adds_up_to_what_tokens_have_in_common():
    measured, _, scores = drawn()
    profile = drift_along(measured)
    # Undo the division: bins of positions 1, 2 and 3–4.
    squares = (scores**2).sum(axis=2)
    energies = [squares[:, 0].sum(), squares[:, 1].sum(), squares[:, 2:].sum()]
    both = float(profile.values @ energies)
    whole = (scores.sum(axis=1) ** 2).sum() - squares.sum()
    assert both == pytest.approx(0.5 * whole, rel=1e-9)
    assert profile.values[0] == 0.0


def test_on_policy_drift_is_near_zero_and_a_drift_is_found():
    measured, batch, scores = drawn(n_probes=32, n_heavy=1, n_groups=300)
    low, high = drift_along(measured).confidence_interval(0.999)
    assert np.all(low[1:] < 0)
    assert np.all(high[1:] > 0)
    drifting = scores + 0.5 * batch.mask[:, :, None]
    found = drift_along(probed(batch, drifting, 32, 1, np.random.default_rng(0)))
    assert found.confidence_interval(0.999)[0][1] > 0


def test_local_slope_of_constant_and_growing_energy():
    measured, batch, scores = drawn()
    flat = np.where(batch.mask, 1.0, 0.0)[:, :, None] * np.ones((1, 1, 2))
    constant = probed(batch, flat, 8, 4, np.random.default_rng(0))
    np.testing.assert_allclose(local_slope(constant).values, 0.5, rtol=1e-9)
    growing = probed(batch, flat * np.sqrt(np.arange(1, 5))[:, None], 8, 4, np.random.default_rng(0))
    expected = 0.5 * np.log2([3.0, 10.0 / 3.0])
    np.testing.assert_allclose(local_slope(growing).values, expected, rtol=1e-9)
    profile = local_slope(measured)
    reach = batch.lengths >= 2
    squares = np.cumsum((scores**2).sum(axis=2), axis=1)[reach]
    assert profile.values[0] == pytest.approx(0.5 * np.log2(squares[:, 1].sum() / squares[:, 0].sum()), rel=1e-9)


def test_concentration_is_the_share_of_the_heaviest():
    measured, _batch, scores = drawn()
    squares = -np.sort(-(scores**2).sum(axis=2), axis=1)
    shares = np.cumsum(squares, axis=1) / squares.sum(axis=1, keepdims=True)
    profile = concentration(measured, [1, 2, 10])
    np.testing.assert_allclose(profile.values, [shares[:, 0].mean(), shares[:, 1].mean(), 1.0], rtol=1e-9)
    assert profile.to_frame().columns.tolist() == [
        "tokens_first",
        "tokens_last",
        "share",
        "share_low",
        "share_high",
        "n_prompts",
    ]


def test_noise_of_few_probes_does_not_concentrate_energy():
    """If all tokens have equal energy, the heaviest of four holds a quarter, however noisy the estimates."""
    batch, _, _ = POLICY.sample(200, 3, 0)
    equal = np.random.default_rng(0).normal(size=(600, 4, 400)) / 20.0 * batch.mask[:, :, None]
    profile = concentration(probed(batch, equal, 4, 0, np.random.default_rng(0)), [1])
    assert profile.values[0] == pytest.approx(np.mean(1.0 / batch.lengths), abs=0.03)


def test_surprise_along_counts_excess_of_surprise():
    measured, batch, _ = drawn()
    expected = -batch.logprobs[:, 2:][batch.mask[:, 2:]].mean()
    assert surprise_along(measured).values[2] == pytest.approx(expected, rel=1e-9)


def test_energy_ratio_and_alpha_know_the_energies():
    measured, _, scores = drawn(n_probes=64, n_heavy=1, n_groups=150)
    totals = (scores**2).sum(axis=(1, 2))
    check = check_on_policy(measured)
    assert check.energy_ratio.value == pytest.approx(np.mean(measured.sq_norms) / totals.mean(), rel=0.05)
    low, high = check.energy_ratio.confidence_interval(0.999)
    assert low < 1.0 < high
    np.testing.assert_allclose(fit_energy_scaling(measured).sq_norms, totals, rtol=0.6)
    assert any("summed token energies" in sentence for sentence in alpha_report(measured).sentences())
    without = replace(measured, token_projections=None)
    assert alpha_report(without).energy_fit is None
    assert np.isnan(check_on_policy(without).energy_ratio.value)


def test_what_probes_share_enters_the_standard_error():
    """A mean over many prompts that share the probes is no more accurate than the probes."""
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        per_probe = (1 + 0.2 * rng.normal(size=(50, 1))) * rng.normal(size=9) ** 2
        found.append((per_probe.mean(), probed_statistic(per_probe.mean(axis=1), per_probe).estimate().stderr))
    values, errors = np.array(found).T
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.2)


def test_what_is_refused():
    measured = drawn()[0]
    for function in (token_correlation, local_slope, concentration, drift_along):
        with pytest.raises(ValueError, match="no probes of token scores: measure with token_probes=…"):
            function(replace(measured, token_projections=None))
    with pytest.raises(ValueError, match="at least 3 prompts, got 2: measure more"):
        token_correlation(measured.select(slice(0, 6)))
