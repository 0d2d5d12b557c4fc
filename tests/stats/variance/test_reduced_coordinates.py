"""Scores in fewer coordinates."""

import numpy as np
import pandas as pd
from comparison_batches import quiet_compare, sized_batch

from gradstats.stats.variance.reduced_coordinates import in_fewer_coordinates
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError


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
