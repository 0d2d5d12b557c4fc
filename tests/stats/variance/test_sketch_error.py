"""The error that a random projection adds to a quadratic form."""

import numpy as np
import pytest

from gradstats.stats.jackknife import added_variance
from gradstats.stats.variance.moments import Groups, cross_signal, prompt_moments
from gradstats.stats.variance.sketch_error import SketchError

RNG = np.random.default_rng(0)


def count_sketch(vectors, dim, rng):
    """Each coordinate goes to one random bucket with a random sign."""
    p = vectors.shape[1]
    projection = np.zeros((p, dim))
    projection[np.arange(p), rng.integers(0, dim, p)] = rng.choice([-1.0, 1.0], p)
    return vectors @ projection


def exact_variance(form, vectors):
    """2/D·(tr(C G C G) − (tr C G)²/D), from the whole Gram matrix."""
    product = form @ vectors @ vectors.T
    dim = vectors.shape[1]
    return 2 / dim * (np.trace(product @ product) - np.trace(product) ** 2 / dim)


def test_squares_have_the_variance_of_the_gram_matrix():
    vectors, shares = RNG.normal(size=(7, 5)), RNG.random(7)
    slopes = SketchError(5, 7, np.random.default_rng(0)).whole_squares(vectors, shares)
    assert (slopes**2).sum() == pytest.approx(exact_variance(np.diag(shares), vectors), rel=1e-10)


def test_cross_terms_have_the_variance_of_the_gram_matrix():
    first, second = RNG.normal(size=(6, 5)), RNG.normal(size=(6, 5))
    probes = SketchError(5, 6, np.random.default_rng(0))
    slopes = probes.whole_cross(first, second)
    both = np.vstack([first, second])
    pairs = (np.ones((6, 6)) - np.eye(6)) / 30
    form = np.block([[np.zeros((6, 6)), pairs], [pairs.T, np.zeros((6, 6))]]) / 2
    assert (slopes**2).sum() == pytest.approx(exact_variance(form, both), rel=1e-10)
    np.testing.assert_allclose(probes.whole_cross(first, first), probes.whole_cross(first, first.copy()), rtol=1e-12)


def test_random_directions_are_right_on_average():
    vectors, shares = RNG.normal(size=(20, 64)), RNG.random(20)
    draws = [
        (SketchError(64, 20, np.random.default_rng(seed)).whole_squares(vectors, shares) ** 2).sum()
        for seed in range(400)
    ]
    assert np.mean(draws) == pytest.approx(exact_variance(np.diag(shares), vectors), abs=4 * np.std(draws) / 20)


def test_folds_average_to_the_whole_and_give_the_expectation():
    """E[g gᵀ] is known here: the inner product of folds estimates its norm; the whole overestimates it."""
    spread = np.array([2.0, 1.0, 1.0, 0.5, 0.5])
    found, whole = [], []
    for seed in range(300):
        vectors = np.random.default_rng(seed).normal(size=(12, 5)) * spread
        probes = SketchError(5, 12, np.random.default_rng(seed))
        shares = np.full(12, 1 / 12)
        folds = probes.squares(vectors, shares, np.arange(12))
        np.testing.assert_allclose(folds.mean(axis=0), probes.whole_squares(vectors, shares), rtol=1e-10)
        total = folds.sum(axis=0)
        found.append((np.sum(total**2) - np.sum(folds**2)) / (len(folds) * (len(folds) - 1)))
        whole.append(np.sum(probes.whole_squares(vectors, shares) ** 2))
    expected = 2 / 5 * ((spread**4).sum() - (spread**2).sum() ** 2 / 5)
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / np.sqrt(300))
    assert np.mean(whole) > 1.2 * expected


def test_nothing_is_subtracted():
    assert added_variance(np.array([[1.0], [-1.0]])) == 0.0


@pytest.mark.parametrize("exact_squares", [True, False])
@pytest.mark.parametrize("signal", [0.0, 6.0])
def test_standard_errors_with_a_sketch_are_those_of_repetition(exact_squares, signal):
    """Over new prompts and new sketches, the spread of the estimates equals their standard errors."""
    n_prompts, size, p, dim, n_repeats = 40, 3, 300, 30, 400
    found = []
    groups = Groups(
        np.arange(n_prompts * size), np.repeat(np.arange(n_prompts), size), np.arange(n_prompts), n_leftover=0
    )
    # A covariance with few directions, none of them an axis, as gradients have.
    mixing = np.random.default_rng(8).normal(size=(12, p)) / np.sqrt(p)
    direction = np.random.default_rng(9).normal(size=p) / np.sqrt(p)
    for seed in range(n_repeats):
        rng = np.random.default_rng(seed)
        prompt = np.repeat(rng.normal(size=(n_prompts, 12)), size, axis=0)
        scores = (rng.normal(size=(n_prompts * size, 12)) + 2 * prompt) @ mixing + signal * direction
        sketch = count_sketch(scores, dim, rng)
        surplus = (scores**2).sum(axis=1) - (sketch**2).sum(axis=1) if exact_squares else None
        probes = SketchError(dim, n_prompts, rng)
        first, second = (
            prompt_moments(sketch, weights, groups, surplus, probes)
            for weights in (np.full(len(scores), 1 / size), rng.normal(1, 0.2, len(scores)) / size)
        )
        cross = cross_signal(first, second, probes)
        found.append([first.trace_cov.estimate(), first.signal.estimate(), cross.estimate()])
    for position, name in enumerate(["trace_cov", "signal", "cross"]):
        values = np.array([row[position].value for row in found])
        mean_variance = np.mean([row[position].stderr ** 2 for row in found])
        # A jackknife of a U-statistic errs on the wide side where the signal is nil.
        slack = 2.2 if signal == 0.0 and name != "trace_cov" else 1.25
        assert 0.8 < mean_variance / values.var() < slack, name
