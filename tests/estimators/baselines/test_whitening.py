"""REINFORCE++: whitening over the tokens of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.scaled import whiten

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches())
def test_whitened_advantages_have_mean_zero_and_variance_one_over_tokens(batch: Batch):
    if batch.lengths.sum() < 2:
        return
    for estimator in (est.reinforce_pp(), est.gae(whiten=True), est.reinforce_pp_baseline()):
        advantages = estimator.advantages(batch)
        tokens = advantages[batch.mask] if advantages.ndim == 2 else np.repeat(advantages, batch.lengths)
        assert tokens.mean() == pytest.approx(0, abs=1e-8)
        # v/(v + 1e-8), which is 1 unless the values are nearly equal
        assert tokens.var(ddof=1) == pytest.approx(1, abs=0.02) or tokens.var(ddof=1) < 1e-3


def test_a_completion_counts_once_for_each_token():
    batch = Batch([1, 0], [3, 1], ["a", "a"])
    # over tokens: mean 3/4, unbiased variance (3/16 + 9/16)/3 = 1/4
    assert_allclose(est.reinforce_pp().advantages(batch), [[0.5] * 3, [-1.5, 0, 0]], rtol=1e-6)
    # R − R̄ = ±1/2: the same shape of spread
    assert_allclose(est.reinforce_pp_baseline().advantages(batch), [0.5, -1.5], rtol=1e-6)
    assert_allclose(whiten(batch.rewards, batch.lengths), [0.5, -1.5], rtol=1e-6)


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="one token has no variance"):
        assert np.isnan(est.reinforce_pp().advantages(Batch([1], [1], [0]))).all()
