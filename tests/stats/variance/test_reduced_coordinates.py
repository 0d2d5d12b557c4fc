"""Scores in fewer coordinates."""

import numpy as np
import pandas as pd
from comparison_batches import quiet_compare, sized_batch

from gradstats.stats import allocate, variance_by_success
from gradstats.stats.variance.scores import Scores
from gradstats.stats.variance.sketch_error import (
    SketchError,
    SpannedCoordinates,
    in_fewer_coordinates,
    rotated_once,
    shared_coordinates,
)


def test_fewer_coordinates_keep_every_inner_product():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 90))
    probes = SketchError(90, 12, rng)
    scores, turned = in_fewer_coordinates(Scores(values, None, True, None), probes)
    assert scores.sequence.shape == (12, 12 + probes.directions.shape[1])
    assert turned.dim == 90
    np.testing.assert_allclose(scores.sequence @ scores.sequence.T, values @ values.T, atol=1e-12)
    np.testing.assert_allclose(scores.sequence @ turned.directions, values @ probes.directions, atol=1e-12)
    for before, after in (
        (probes.cross(values, values), turned.cross(scores.sequence, scores.sequence)),
        (
            probes.squares(values, np.ones(12), np.arange(12)),
            turned.squares(scores.sequence, np.ones(12), np.arange(12)),
        ),
    ):
        gram = [np.einsum("fdr,gdr->fg", slopes, slopes) for slopes in (before, after)]
        np.testing.assert_allclose(gram[0], gram[1], atol=1e-10)
    wide = Scores(values[:, :24], None, True, None)
    assert in_fewer_coordinates(wide, None)[0].sequence.shape == (12, 12)
    narrow = Scores(values[:, :23], None, False, None)
    assert in_fewer_coordinates(narrow, None)[0] is narrow


def test_a_comparison_in_many_dimensions_is_that_of_few():
    batch, scores = sized_batch(n_prompts=6)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(400, 6)))[0]
    few = quiet_compare(batch, ["rloo", "grpo", "batch_mean"], scores, n_resamples=5).to_frame()
    many = quiet_compare(batch, ["rloo", "grpo", "batch_mean"], scores @ turn.T, n_resamples=5).to_frame()
    pd.testing.assert_frame_equal(few, many, rtol=1e-8)


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
