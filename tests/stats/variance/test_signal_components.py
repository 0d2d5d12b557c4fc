"""The parts of the variance of the estimate of ‖E g‖²."""

from dataclasses import astuple
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.variance.moments import SignalComponents, signal_components


def test_the_parts_are_the_means_over_distinct_prompts():
    """Every pair, triple and quadruple of six prompts, one by one."""
    g = np.random.default_rng(0).normal(size=(6, 3)) + 0.5
    gram = g @ g.T
    parts = signal_components(g)
    pairs = list(permutations(range(6), 2))
    assert parts.mean == pytest.approx(np.mean([gram[m, k] for m, k in pairs]), rel=1e-12)
    mean_sq = np.mean([gram[a, b] * gram[c, d] for a, b, c, d in permutations(range(6), 4)])
    triples = np.mean([gram[a, b] * gram[a, c] for a, b, c in permutations(range(6), 3)])
    assert parts.linear == pytest.approx(triples - mean_sq, rel=1e-9)
    assert parts.quadratic == pytest.approx(
        np.mean([gram[m, k] ** 2 for m, k in pairs]) - mean_sq - 2 * parts.linear, rel=1e-9
    )


def test_the_parts_are_those_of_the_population():
    """Gradients N(μ, Σ): ζ = μ'Σμ and δ = tr Σ², and 4ζ/M + 2δ/(M(M−1)) is the variance of the mean over pairs."""
    rng, mean, spread = np.random.default_rng(0), np.array([0.5, 0.0, 0.2]), np.array([1.0, 2.0, 0.5])
    found, signals = [], []
    for _ in range(4000):
        g = mean + spread * rng.normal(size=(12, 3))
        found.append(astuple(signal_components(g)))
        signals.append(found[-1][0])
    average, stderr = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(4000)
    expected = np.array([mean @ mean, mean**2 @ spread**2, np.sum(spread**4)])
    assert np.all(np.abs(average - expected) < 4 * stderr)
    assert np.var(signals) == pytest.approx(4 * expected[1] / 12 + 2 * expected[2] / (12 * 11), rel=0.1)


def test_inner_products_may_have_a_signature():
    """⟨a, b⟩ = a₁b₁ − a₂b₂, as coordinates of positive and negative eigenvalues have it."""
    g, signs = np.random.default_rng(0).normal(size=(7, 2)), np.array([1.0, -1.0, 1.0])
    gram = g @ np.diag(signs[:2]) @ g.T
    assert signal_components(g, signs).mean == pytest.approx((gram.sum() - np.trace(gram)) / 42, rel=1e-12)


def test_few_and_many_prompts():
    g = np.random.default_rng(0).normal(size=(600, 3))
    assert signal_components(g[:3]) is None
    assert signal_components(g) == signal_components(g[:512]) != signal_components(g[:511])


def test_prompts_to_resolve_by_hand():
    """With δ = 0 the size is 4ζ((z + z₀.₈)/s)², with ζ = 0 it is (z√4δ + z₀.₈√2δ)/s."""
    z, z_80 = stats.norm.ppf([0.975, 0.8])
    linear, quadratic = SignalComponents(0.2, 3.0, -1.0), SignalComponents(0.2, -1.0, 8.0)
    assert linear.prompts_to_resolve(0.2, 0.2, 0.95) == np.ceil(12 * ((z + z_80) / 0.2) ** 2)
    assert quadratic.prompts_to_resolve(0.2, 0.2, 0.95) == np.ceil((z * np.sqrt(32) + z_80 * 4) / 0.2)
    half = linear.prompts_to_resolve(0.1, 0.2, 0.95)  # ζ in proportion to the signal
    assert half == np.ceil(6 * ((z + z_80) / 0.1) ** 2)
    assert linear.prompts_to_resolve(-0.1, -0.1, 0.95) == np.inf
