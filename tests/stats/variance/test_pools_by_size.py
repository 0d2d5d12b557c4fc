"""The same completions in groups of several sizes."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.stats.variance.comparison import prepared_inputs
from gradstats.stats.variance.inputs import coefficient_on_target, moments_of, pools_by_size


def pools(batch, scores, enough, sketched=False):
    inputs, _, judged = prepared_inputs(batch, [est.rloo()], scores, sketched, "auto")
    return pools_by_size(inputs, judged, enough, np.random.default_rng(0))


def test_prompts_keep_their_numbers_and_scores_their_coordinates():
    batch, scores = correlated_batch(n_prompts=6, size=8)
    wide = np.concatenate([scores, np.zeros((48, 300))], axis=1)
    enough = np.arange(6) != 2
    found = pools(batch, wide, enough)
    assert found.n_prompts == 5
    small, large = found.pool(2), found.pool(8)
    assert (small.groups.n_groups, large.groups.n_groups) == (20, 5)
    assert large.scores.sequence.shape[1] <= 48 + 16
    for pool in (small, large):
        first = pool.batch.select(np.flatnonzero(pool.groups.prompt[pool.groups.group] == 0))
        assert set(first.lengths) <= set(batch.lengths)
    # Gradients of prompts at both sizes have the inner products that the scores have.
    kept = batch.select(np.flatnonzero(enough[batch.group_index]))
    prompts = np.unique(kept.groups)
    direct = np.array([batch.rewards[batch.groups == one] @ scores[batch.groups == one] for one in prompts])
    gram = np.sort((direct @ direct.T).ravel())
    for pool, size in ((small, 2), (large, 8)):
        means = moments_of(pool, est.reinforce()).means * size * pool.groups.n_groups / 5
        np.testing.assert_allclose(np.sort((means @ means.T).ravel()), gram, rtol=1e-8)
    np.testing.assert_allclose(*(moments_of(pool, est.reinforce()).means for pool in (small, large)), atol=1e-10)


def test_coefficients_are_those_of_known_multiples():
    batch, scores = correlated_batch()
    scores = scores + 5.0 * (batch.rewards - 0.5)[:, None]
    found = pools(batch, scores, np.ones(200, dtype=bool))
    pool = found.pool(4)
    coefficient = coefficient_on_target(pool, moments_of(pool, est.group_mean()), found.judged)
    assert coefficient is not None
    assert coefficient.value == pytest.approx(0.75)
    assert coefficient.estimate().stderr == pytest.approx(0.0, abs=1e-12)
    opposed = scores * np.where(np.arange(len(scores)) % 2, 1.0, -1.0)[:, None]
    found = pools(batch, opposed, np.ones(200, dtype=bool))
    assert coefficient_on_target(found.pool(4), moments_of(found.pool(4), est.group_mean()), found.judged) is None


def test_silence_is_refused():
    batch = Batch(np.ones(8), np.full(8, 3), np.arange(8) // 4)
    found = pools(batch, np.ones((8, 2)), np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match="rloo gives no completion any weight in groups of 2, since every reward"):
        moments_of(found.pool(2), est.rloo())
