"""The best set: ties stay, what is clearly worse leaves, and the truly lowest is kept at the stated rate."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.variance.result import pairwise_differences

EVERY = np.ones(3, dtype=bool)


def test_a_clear_winner_is_alone_and_a_tie_is_not():
    rng = np.random.default_rng(0)
    low, close, high = np.exp(0.3 * rng.normal(size=(3, 100))) * [[1.0], [1.01], [3.0]]
    differences = pairwise_differences([mean_statistic(each) for each in (high, low, close)])
    assert differences.best_set(EVERY, 0.95).tolist() == [False, True, True]
    alone = pairwise_differences([mean_statistic(each) for each in (high, low)])
    assert alone.best_set(EVERY[:2], 0.95).tolist() == [False, True]


def test_differences_that_nobody_would_choose_by_are_ties():
    values = np.exp(np.random.default_rng(0).normal(size=50))
    same = pairwise_differences([mean_statistic(values), mean_statistic(values * (1 + 1e-7))])
    assert same.best_set(EVERY[:2], 0.95).all()
    apart = pairwise_differences([mean_statistic(values), mean_statistic(values * (1 + 1e-3))])
    assert apart.best_set(EVERY[:2], 0.95).tolist() == [True, False]


def test_what_is_not_judged_neither_belongs_nor_excludes():
    values = np.exp(0.1 * np.random.default_rng(0).normal(size=(3, 50))) * [[1.0], [2.0], [4.0]]
    statistics = [mean_statistic(each) for each in values]
    differences = pairwise_differences(statistics)
    assert differences.best_set(np.array([False, True, True]), 0.95).tolist() == [False, True, False]
    unknown = pairwise_differences([None, *statistics[1:]])
    assert unknown.best_set(EVERY, 0.95).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="confidence_level=0 must lie between 0 and 1"):
        differences.best_set(EVERY, 0.0)


def test_the_truly_lowest_is_kept_at_the_stated_rate():
    """Six equal means: each is the lowest, and any one is excluded in at most 5 % of 400 data sets (error 0.011)."""
    rng, kept, every = np.random.default_rng(2), 0, 0
    for _ in range(400):
        values = np.exp(0.8 * rng.normal(size=(6, 60)))
        inside = pairwise_differences([mean_statistic(each) for each in values]).best_set(np.ones(6, dtype=bool), 0.95)
        kept += inside[0]
        every += inside.all()
    assert kept / 400 >= 0.95
    assert every / 400 >= 0.92


def test_the_column_of_a_comparison():
    batch, scores = interleaved_batch([4] * 60, signal=1.0)
    result = quiet_compare(batch, ["rloo", "group_mean", "constant(b=5)"], scores)
    frame = result.to_frame()
    # An own-sample mean is `rloo` at matched signal.
    assert frame["in_best_set"].tolist() == [True, True, False]
    assert result.lowest_beyond_doubt() is None


def test_rows_may_be_placed_among_others_that_are_not_known():
    values = np.exp(0.1 * np.random.default_rng(0).normal(size=(2, 50))) * [[1.0], [2.0]]
    placed = pairwise_differences([mean_statistic(each) for each in values]).placed([0, 2], 3)
    assert placed.best_set(EVERY, 0.95).tolist() == [True, False, False]
    assert np.isnan(placed.studentised[1]).all()
