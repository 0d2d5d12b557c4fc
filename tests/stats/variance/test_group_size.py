"""Several group sizes from one pool of completions, and scores in fewer coordinates."""

import warnings

import numpy as np
import pandas as pd
import pytest

from gradstats.estimators import Batch
from gradstats.stats import compare
from gradstats.stats.variance.reduced_coordinates import in_fewer_coordinates
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError


def make(n_prompts=20, size=8, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    n = n_prompts * size
    scores = rng.normal(size=(n, dim)) + 0.3
    batch = Batch(
        (rng.random(n) < 0.5).astype(float),
        rng.integers(3, 60, n),
        np.repeat(np.arange(n_prompts), size),
        sq_norms=1.1 * (scores**2).sum(axis=1),
    )
    return batch, scores


def quietly(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return compare(*arguments, **keywords)


def test_sizes_in_one_call_are_the_rows_of_each_size_alone():
    batch, scores = make()
    together = quietly(batch, ["group_mean", "rloo"], scores, group_size=[2, 4, 8])
    frame = together.to_frame()
    assert list(frame["group_size"]) == [2, 2, 4, 4, 8, 8]
    assert together.group_size == (2, 4, 8)
    assert (together.n_prompts, together.n_groups, together.n_leftover) == (20, 140, 0)
    for position, size in enumerate((2, 4, 8)):
        alone = quietly(batch, ["group_mean", "rloo"], scores, group_size=size)
        assert alone.group_size == size
        rows = frame.iloc[2 * position : 2 * position + 2].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, alone.to_frame(), check_dtype=False)
    parts = together.variance_components()
    assert list(parts["within_prompt"].isna()) == [False] * 4 + [True] * 2


def test_notes_tell_their_size_and_are_not_repeated():
    batch, scores = make(size=6)
    result = quietly(batch, ["rloo", "group_mean"], scores, group_size=(4, 3), scores_are_sketches=True)
    notes = list(result.notes)
    assert any(note.startswith("group_size=4: 40 completions did not fill a group of 4") for note in notes)
    assert sum("inner products come from a sketch of dimension 6" in note for note in notes) == 1
    assert result.n_leftover == 40
    assert len(result.to_frame(0.9)) == 4


def test_repeated_and_missing_sizes():
    batch, scores = make()
    assert list(quietly(batch, ["rloo"], scores, group_size=[4, 4]).to_frame()["group_size"]) == [4]
    with pytest.raises(ValueError, match="group_size is empty: give one size, several, or None"):
        compare(batch, ["rloo"], scores, group_size=[])
    with pytest.raises(ValueError, match="group_size=9 must lie between 1 and .* at most 8 here"):
        compare(batch, ["rloo"], scores, group_size=[4, 9])


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
    batch, scores = make(n_prompts=6)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(400, 6)))[0]
    few = quietly(batch, ["rloo", "grpo", "batch_mean"], scores, n_resamples=5).to_frame()
    many = quietly(batch, ["rloo", "grpo", "batch_mean"], scores @ turn.T, n_resamples=5).to_frame()
    pd.testing.assert_frame_equal(few, many, rtol=1e-8)
