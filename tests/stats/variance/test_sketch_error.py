"""The error that a random projection adds to a quadratic form."""

import numpy as np
import pandas as pd
import pytest
from comparison_batches import quiet_compare, sized_batch

from gradstats.analyses import allocate, variance_by_success
from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.moments import Groups, cross_signal, prompt_moments
from gradstats.stats.variance.scores import Scores
from gradstats.stats.variance.sketch_error import (
    SketchError,
    SpannedCoordinates,
    TokenProbeError,
    in_fewer_coordinates,
    rotated_once,
    shared_coordinates,
)


@pytest.mark.parametrize("n_probes", [6, 40])
def test_standard_errors_with_probes_are_those_of_repetition(n_probes):
    """Over fresh prompts and fresh probes, estimates scatter by their standard errors; prompts alone explain less."""
    n_prompts, dim, found = 60, 40, []
    direction = np.random.default_rng(9).normal(size=dim) / np.sqrt(dim)
    groups = Groups(*[np.arange(n_prompts)] * 3, n_leftover=0)
    signs = np.repeat([1.0, 1.0, -1.0], [dim, n_probes, n_probes])
    for seed in range(200):
        rng = np.random.default_rng(seed)
        gradients = direction + 0.5 * rng.normal(size=(n_prompts, dim)) / np.sqrt(dim)
        along = gradients @ rng.normal(size=(dim, n_probes)) / np.sqrt(n_probes)
        features = np.concatenate([0.3 * gradients, along, 0.3 * along], axis=1)
        probes = TokenProbeError(dim, n_prompts, rng, n_probes, sketched=False)
        first, second = (
            prompt_moments(features, weights, groups, None, probes, signs=signs)
            for weights in (np.ones(n_prompts), rng.normal(1, 0.2, n_prompts))
        )
        estimated = (first.second_moment, first.signal, cross_signal(first, second, probes))
        without = [Statistic(one.value, one.replicates).estimate().stderr for one in estimated]
        found.append([[one.value for one in estimated], [one.estimate().stderr for one in estimated], without])
    values, errors, jackknife = np.moveaxis(np.array(found), 1, 0)
    ratio = np.sqrt((errors**2).mean(axis=0)) / values.std(axis=0)
    np.testing.assert_array_less(0.85, ratio)
    np.testing.assert_array_less(ratio, 1.25)
    np.testing.assert_array_less(jackknife.mean(axis=0), 0.8 * values.std(axis=0))


def test_fewer_coordinates_keep_every_inner_product():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 90))
    probes = SketchError(90, 12, rng)
    scores, turned = in_fewer_coordinates(Scores(values, None, True, None), probes)
    assert scores.sequence.shape == (12, 12 + probes.directions.shape[1])
    assert turned.dim == 90
    np.testing.assert_allclose(scores.sequence @ scores.sequence.T, values @ values.T, atol=1e-12)
    np.testing.assert_allclose(scores.sequence @ turned.directions, values @ probes.directions, atol=1e-12)
    pairs = [(probes, values), (turned, scores.sequence)]
    for slopes in (
        [one.cross(of, of) for one, of in pairs],
        [one.squares(of, np.ones(12), np.arange(12)) for one, of in pairs],
    ):
        gram = [np.einsum("fdr,gdr->fg", one, one) for one in slopes]
        np.testing.assert_allclose(gram[0], gram[1], atol=1e-10)
    wide, narrow = (Scores(values[:, :dim], None, True, None) for dim in (24, 23))
    assert in_fewer_coordinates(wide, None)[0].sequence.shape == (12, 12)
    assert in_fewer_coordinates(narrow, None)[0] is narrow


def test_scores_of_low_rank_keep_their_inner_products():
    rng = np.random.default_rng(2)
    values = np.repeat(rng.normal(size=(3, 70)), 4, axis=0)  # each completion four times
    directions = rng.normal(size=(70, 5))
    found = SpannedCoordinates.of(values.copy())
    turned = found.turned(directions)
    assert turned.shape == (12 + 5, 5)
    np.testing.assert_allclose(found.coordinates @ found.coordinates.T, values @ values.T, atol=1e-12)
    np.testing.assert_allclose(found.coordinates @ turned[:12], values @ directions, atol=1e-12)
    np.testing.assert_allclose(turned.T @ turned, directions.T @ directions, atol=1e-12)


def test_scores_rotated_once_give_the_same_results(monkeypatch):
    batch, scores = sized_batch(n_prompts=6)
    scores = (scores @ np.linalg.qr(np.random.default_rng(1).normal(size=(400, 6)))[0].T).astype(np.float32)
    rotations = []
    of = SpannedCoordinates.of
    monkeypatch.setattr(SpannedCoordinates, "of", lambda values: rotations.append(len(values)) or of(values))

    def results():
        for found in (
            quiet_compare(batch, ["rloo", "grpo"], scores, group_size=[2, 4], scores_are_sketches=True),
            variance_by_success(batch, ["rloo", "grpo"], scores, bins=2, scores_are_sketches=True),
            allocate(batch, ["rloo", "grpo"], scores, tokens=1000, scores_are_sketches=True),
        ):
            yield found.to_frame()

    alone = list(results())
    assert len(rotations) == 3
    with rotated_once():
        for before, after in zip(alone, results(), strict=True):
            pd.testing.assert_frame_equal(before, after, rtol=1e-9, atol=1e-12)
    assert len(rotations) == 4


def test_only_the_first_scores_are_shared_and_only_within():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 4, 50))
    assert shared_coordinates(first) is None
    with rotated_once():
        found = shared_coordinates(first)
        assert found is not None
        with rotated_once():
            assert shared_coordinates(first) is found
        assert shared_coordinates(second) is None
        assert shared_coordinates(first[:, :30]) is None
    with rotated_once():
        assert shared_coordinates(np.full((4, 50), np.nan)) is None
    assert shared_coordinates(first) is None


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


def test_squares_and_cross_terms_have_the_variance_of_the_gram_matrix():
    vectors, shares = RNG.normal(size=(7, 5)), RNG.random(7)
    slopes = SketchError(5, 7, np.random.default_rng(0)).whole_squares(vectors, shares)
    assert (slopes**2).sum() == pytest.approx(exact_variance(np.diag(shares), vectors), rel=1e-10)
    first, second = RNG.normal(size=(6, 5)), RNG.normal(size=(6, 5))
    probes = SketchError(5, 6, np.random.default_rng(0))
    slopes = probes.whole_cross(first, second)
    pairs, none = (np.ones((6, 6)) - np.eye(6)) / 30, np.zeros((6, 6))
    form = np.block([[none, pairs], [pairs.T, none]]) / 2
    assert (slopes**2).sum() == pytest.approx(exact_variance(form, np.vstack([first, second])), rel=1e-10)
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


@pytest.mark.parametrize("exact_squares", [True, False])
@pytest.mark.parametrize("signal", [0.0, 6.0])
def test_standard_errors_with_a_sketch_are_those_of_repetition(exact_squares, signal):
    """Over new prompts and new sketches, the spread of the estimates equals their standard errors."""
    n_prompts, size, p, dim, found = 40, 3, 300, 30, []
    prompt_of = np.repeat(np.arange(n_prompts), size)
    groups = Groups(np.arange(n_prompts * size), prompt_of, np.arange(n_prompts), n_leftover=0)
    # A covariance with few directions, none of them an axis, as gradients have.
    mixing = np.random.default_rng(8).normal(size=(12, p)) / np.sqrt(p)
    direction = np.random.default_rng(9).normal(size=p) / np.sqrt(p)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        prompt = rng.normal(size=(n_prompts, 12))[prompt_of]
        scores = (rng.normal(size=(n_prompts * size, 12)) + 2 * prompt) @ mixing + signal * direction
        sketch = count_sketch(scores, dim, rng)
        surplus = (scores**2).sum(axis=1) - (sketch**2).sum(axis=1) if exact_squares else None
        probes = SketchError(dim, n_prompts, rng)
        first, second = (
            prompt_moments(sketch, weights, groups, surplus, probes)
            for weights in (np.full(len(scores), 1 / size), rng.normal(1, 0.2, len(scores)) / size)
        )
        estimated = (first.trace_cov, first.signal, cross_signal(first, second, probes))
        found.append([(one.estimate().value, one.estimate().stderr) for one in estimated])
    values, errors = np.moveaxis(np.array(found), 2, 0)
    ratio = (errors**2).mean(axis=0) / values.var(axis=0)
    # A jackknife of a U-statistic errs on the wide side where the signal is nil.
    most = [1.25, 2.2, 2.2] if signal == 0.0 else 1.25
    assert ((ratio > 0.8) & (ratio < most)).all(), ratio
