"""Intervals of cosines and shares of bias that hold together."""

import numpy as np
from comparison_batches import correlated_batch, quietly

from gradstats.stats import compare
from gradstats.stats.jackknife import NOT_ESTIMATED
from gradstats.stats.variance.estimates import fieller_simultaneous

ESTIMATORS = ["rloo", "token_mean", "grpo", "length_weighted(alpha=1.0)"]


def rows(names):
    batch, scores = correlated_batch(60, 4)
    return quietly(compare, batch, names, scores + 2.0 * batch.rewards[:, None]).rows


def test_they_contain_those_of_each_row_alone():
    for name in ("cosine", "matched_bias_share"):
        estimates = [getattr(row, name) for row in rows(ESTIMATORS)]
        together = fieller_simultaneous(estimates, 0.9)
        wider = 0
        for one, (low, high) in zip(estimates, together, strict=True):
            alone = one.with_interval(0.9)
            assert low <= alone[1] <= alone[2] <= high
            wider += high - low > alone[2] - alone[1] + 1e-9
        assert wider >= len(ESTIMATORS) - 1  # rloo is the target: what is known exactly has one interval


def test_what_is_not_estimated_is_nan():
    (low, high), _ = fieller_simultaneous([NOT_ESTIMATED, rows(["grpo"])[0].cosine], 0.95)
    assert np.isnan([low, high]).all()
