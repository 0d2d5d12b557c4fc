"""From a model to a table of token-level estimators, compared with one backward pass per token."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison_batches import quiet_compare
from conftest import ragged_rollouts, tiny_model
from probed_policies import MANY_DIRECTIONS, drawn_tokens, probed
from scipy import stats

import gradstats as gs
from gradstats.analyses import alpha_report, check_on_policy
from gradstats.estimators import Batch
from gradstats.stats import concentration, fit_energy_scaling, local_slope, token_correlation
from gradstats.stats.token_profiles import (
    FRACTIONS,
    common_scale,
    cumulative_errors,
    doubling_bins,
    excess_of,
    factor,
    log_slope,
    prompt_mean,
    surprise,
)


def test_prompts_count_equally_and_probes_add_their_shared_error():
    statistic = prompt_mean(np.array([1.0, 3.0, 8.0]), np.array([0, 0, 1]))
    assert statistic.value == pytest.approx(5.0)
    np.testing.assert_allclose(statistic.replicates, [8.0, 2.0])
    along = np.random.default_rng(0).normal(size=(1, 8)) ** 2 * np.ones((40, 1))  # all that varies is the probe
    given = along.mean(axis=1), np.repeat(np.arange(20), 2)
    assert prompt_mean(*given, along).estimate().stderr == pytest.approx(along[0].std(ddof=1) / np.sqrt(8))
    assert prompt_mean(*given).estimate().stderr == pytest.approx(0.0)


def test_the_surprise_of_counted_tokens_by_hand():
    measured = SimpleNamespace(
        metadata={},
        logprobs=[np.array([-1.0, -1e6])],
        entropy=[np.array([0.25, 0.0])],
        rollouts=SimpleNamespace(masks=[np.array([True, False])]),
    )
    np.testing.assert_allclose(excess_of(measured)[0], [0.75])
    excess = [np.array([1.0, -0.5]), np.array([0.5]), np.array([2.0])]
    assert surprise(excess, np.array([0, 0, 1])).value == pytest.approx((0.5 + 2.0) / 2.0)


def test_concentration_is_the_share_of_the_heaviest():
    measured, _batch, scores = drawn_tokens()
    squares = -np.sort(-(scores**2).sum(axis=2), axis=1)
    shares = np.cumsum(squares, axis=1) / squares.sum(axis=1, keepdims=True)
    profile = concentration(measured, [1, 2, 10])
    np.testing.assert_allclose(profile.values, [shares[:, 0].mean(), shares[:, 1].mean(), 1.0], rtol=1e-9)
    columns = "tokens_first tokens_last share share_low share_high n_prompts"
    assert list(profile.to_frame()) == columns.split()


def test_noise_of_few_probes_does_not_concentrate_energy():
    """If all tokens have equal energy, the heaviest of four holds a quarter, however noisy the estimates."""
    batch, _, _ = MANY_DIRECTIONS.sample(200, 3, 0)
    equal = np.random.default_rng(0).normal(size=(600, 4, 400)) / 20.0 * batch.mask[:, :, None]
    profile = concentration(probed(batch, equal, 4, 0, np.random.default_rng(0)), [1])
    assert profile.values[0] == pytest.approx(np.mean(1.0 / batch.lengths), abs=0.03)


def brute_correlation(scores, lengths, distances):
    top = bottom = 0.0
    for s, length in zip(scores, lengths, strict=True):
        for distance in distances:
            for t in range(length - distance):
                top += s[t] @ s[t + distance]
                bottom += 0.5 * (s[t] @ s[t] + s[t + distance] @ s[t + distance])
    return top / bottom


def test_correlation_is_that_of_exact_scores():
    measured, batch, scores = drawn_tokens()
    profile = token_correlation(measured)
    assert profile.last.tolist() == [1, 2, 3]
    for place, distance in enumerate([1, 2, 3]):
        expected = brute_correlation(scores, batch.lengths, [distance])
        assert profile.values[place] == pytest.approx(expected, rel=1e-9)
    assert token_correlation(measured, max_distance=2).last.tolist() == [1, 2]


def test_correlation_from_probes_is_unbiased_and_knows_its_error():
    """Profiles of the same completions over draws of the probes."""
    batch, _, scores = MANY_DIRECTIONS.sample(20, 3, 0)
    rng = np.random.default_rng(1)
    top = [token_correlation(probed(batch, 3.0 * scores, 6, 1, rng), max_distance=1).values[0] for _ in range(100)]
    # Denominators are nearly exact with the heavy tokens known, so that the quotient is nearly unbiased.
    expected = brute_correlation(scores, batch.lengths, [1])
    assert np.mean(top) == pytest.approx(expected, abs=4 * np.std(top) / np.sqrt(100) + 0.003)


ENERGIES = [np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0]), np.array([2.0, 6.0, 1.0]), np.array([5.0, 2.0, 3.0])]
PROXY = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 5.0, 3.0]), np.array([4.0, 4.0, 1.0])]
PROMPTS = np.array([0, 0, 1, 2])


@pytest.mark.parametrize(("at", "counted"), [(0.25, slice(1)), (1.0, slice(None))])
def test_cumulative_errors_are_those_of_the_tokens_up_to_there(at, counted):
    scale = sum(e.sum() for e in ENERGIES) / sum(p.sum() for p in PROXY)
    sums = [(e[counted].sum(), p[counted].sum()) for e, p in zip(ENERGIES, PROXY, strict=True)]
    errors = [abs(scale * p - e) / e for e, p in sums]
    found = cumulative_errors(ENERGIES, PROXY, PROMPTS)[FRACTIONS.index(at)]
    assert found.value == pytest.approx(np.mean([(errors[0] + errors[1]) / 2.0, errors[2], errors[3]]))


@pytest.mark.parametrize(("n_probes", "expected"), [(8, 1.48), (32, 1.22)])
def test_noise_of_probes_raises_the_factor_of_a_perfect_proxy(n_probes, expected):
    rng = np.random.default_rng(0)
    energies = np.exp(2.0 * rng.standard_normal((100, 1000)))
    noisy = energies * rng.chisquare(n_probes, energies.shape) / n_probes
    assert factor([*noisy], [*energies], np.arange(100)).value == pytest.approx(expected, abs=0.02)


def test_by_hand_of_factor():
    e, p = np.concatenate(ENERGIES), np.concatenate(PROXY)
    scale = e.sum() / p.sum()
    assert common_scale(ENERGIES, PROXY) == pytest.approx(scale)
    # The statistic is a quotient of means over prompts of sums, in which the number of prompts cancels.
    expected = np.exp(e @ np.abs(np.log(e / (scale * p))) / e.sum())
    assert factor(ENERGIES, PROXY, PROMPTS).value == pytest.approx(expected)


def test_local_slope_of_constant_and_growing_energy():
    measured, batch, scores = drawn_tokens()
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


def test_the_slope_is_that_of_least_squares_over_tokens_with_energy():
    expected = stats.linregress(np.log(np.concatenate(PROXY)), np.log(np.concatenate(ENERGIES))).slope
    without = [np.append(e, 0.0) for e in ENERGIES], [np.append(p, 7.0) for p in PROXY]
    for energies, proxy in ((ENERGIES, PROXY), without):
        assert log_slope(energies, proxy, PROMPTS).value == pytest.approx(expected)
    assert np.isnan(log_slope(ENERGIES, [np.ones(len(e)) for e in ENERGIES], PROMPTS).value)
    assert np.isnan(common_scale(ENERGIES, [np.zeros(len(e)) for e in ENERGIES]))


def test_bins_double():
    for longest in (1, 2, 3, 8, 21):
        first, last = doubling_bins(longest)
        covered = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        np.testing.assert_array_equal(covered, np.arange(1, longest + 1))
    assert doubling_bins(21)[1].tolist() == [1, 2, 4, 8, 16, 21]


def test_energy_ratio_and_alpha_know_the_energies():
    measured, _, scores = drawn_tokens(n_probes=64, n_heavy=1, n_groups=150)
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


def test_what_is_refused():
    measured = drawn_tokens()[0]
    none = "no probes of token scores: measure with --set measurement.token_probes=32"
    for function in (token_correlation, local_slope, concentration):
        with pytest.raises(ValueError, match=none):
            function(replace(measured, token_projections=None))
    with pytest.raises(ValueError, match="at least 3 prompts, got 2: measure more"):
        token_correlation(measured.select(slice(0, 6)))


NAMES = ["rloo", "otb", "otb(energy=exact, loo=True)", "gae", "causal_optimal"]


def token_scores(model, rollouts):
    """Token scores (N, T, D) from one backward pass per token."""
    widest = int(rollouts.lengths.max())
    found = []
    for prompt, completion in zip(rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        rows = []
        for place in range(len(completion)):
            logprobs = model(ids).logits[0, len(prompt) + place - 1].log_softmax(dim=-1)
            gradients = torch.autograd.grad(logprobs[ids[0, len(prompt) + place]], list(model.parameters()))
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]).numpy())
        found.append(np.pad(np.array(rows), ((0, widest - len(rows)), (0, 0))))
    return np.array(found)


@pytest.fixture(scope="module")
def case():
    rollouts = ragged_rollouts(12, seed=3, longest=7)
    model = tiny_model("qwen2")
    return model, rollouts, token_scores(model, rollouts)


@pytest.mark.parametrize(("token_exact", "tolerance"), [(8, 0.05), (2, 0.4)])
def test_a_table_from_the_engine_is_that_of_exact_token_scores(case, token_exact, tolerance):
    model, rollouts, scores = case
    measured = gs.measure(model, rollouts, token_probes=32, token_exact=token_exact, progress=False)
    values = [np.linspace(0.2, 0.6, length) for length in rollouts.lengths]
    energies, cross = (scores**2).sum(axis=2), np.einsum("ntd,nd->nt", scores, scores.sum(axis=1))
    batch = Batch.from_measurement(measured, values=values, token_energy=energies, token_cross=cross)
    table = quiet_compare(measured, NAMES, values=values).to_frame()
    exact = quiet_compare(batch, NAMES, scores).to_frame()
    kept = slice(0, 4) if token_exact == 2 else slice(None)
    for name in ("trace_cov", "ratio"):
        np.testing.assert_allclose(table[name][kept], exact[name][kept], rtol=tolerance)


def test_proxies_of_a_model_are_judged(case):
    model, rollouts, scores = case
    measured = gs.measure(model, rollouts, token_probes=6, token_exact=8, progress=False)
    quality = gs.proxy_quality(measured)
    assert quality.share_exact == pytest.approx(1.0)
    energies = np.concatenate([(scores[row, :length] ** 2).sum(axis=1) for row, length in enumerate(rollouts.lengths)])
    np.testing.assert_allclose(quality.tokens["energy"], energies, rtol=1e-6)
