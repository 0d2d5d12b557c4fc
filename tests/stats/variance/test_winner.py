"""Which estimator is lowest: the comparison pairs every estimator with the lowest one."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from gradstats.estimators import Batch
from gradstats.stats import compare
from gradstats.stats.variance.result import best_rows, clear_winner, lowest

ESTIMATORS = ["rloo", "reinforce", "constant(b=0.5)", "constant(b=5)"]


def problem(seed=0, n=30, size=4, noise=1.0):
    rng = np.random.default_rng(seed)
    rewards = 5.0 + noise * rng.normal(size=n * size)
    batch = Batch(rewards=rewards, lengths=np.full(n * size, 10), groups=np.repeat(np.arange(n), size))
    return batch, rng.normal(size=(n * size, 6))


def quiet(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(*arguments, **keywords)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_it_agrees_with_a_comparison_made_again_with_the_lowest_as_reference(seed, level):
    batch, scores = problem(seed)
    comparison = quiet(batch, ESTIMATORS, scores)
    frame = comparison.to_frame(level)
    best = lowest(frame)
    assert comparison.lowest(level) == best == "constant(b=5)"
    again = quiet(batch, ESTIMATORS, scores, reference=best).to_frame(level)
    at = clear_winner(frame, again)
    expected = None if at is None else best
    assert comparison.lowest_beyond_doubt(level) == frame.attrs["lowest_beyond_doubt"] == expected


def test_both_verdicts_occur():
    batch, scores = problem()
    assert quiet(batch, ESTIMATORS, scores).lowest_beyond_doubt(0.95) == "constant(b=5)"
    tie = [*ESTIMATORS, "constant(b=5.01)"]
    assert quiet(batch, tie, scores).lowest_beyond_doubt(0.95) is None


def test_the_reference_needs_no_further_pairing():
    batch, scores = problem()
    comparison = quiet(batch, ["rloo", "reinforce"], scores)
    assert comparison.lowest() == comparison.lowest_beyond_doubt() == "rloo"


def test_no_verdict_on_several_group_sizes_or_a_single_row():
    batch, scores = problem()
    assert quiet(batch, ESTIMATORS, scores, group_size=[2, 4]).lowest_beyond_doubt() is None
    assert quiet(batch, ["reinforce"], scores).lowest_beyond_doubt() is None


def test_batch_level_estimators_are_compared_like_others():
    batch, scores = problem(noise=0.1)
    comparison = quiet(batch, ["rloo", "reinforce", "batch_mean(loo=True)"], scores, n_resamples=64)
    assert comparison.lowest() == comparison.lowest_beyond_doubt() == "batch_mean(loo=True)"


def test_a_row_that_was_not_judged_is_not_in_the_best_set():
    frame = pd.DataFrame({"estimator": ["rloo", "mine", "other"], "in_best_set": [True, None, np.nan]})
    assert best_rows(frame) == [0]
