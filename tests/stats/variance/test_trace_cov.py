"""The variance of a group's gradient, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import trace_cov


def test_one_group_a_prompt_gives_the_sample_variance():
    assert trace_cov(statistics_of(along(3, 1, 2))).value == pytest.approx(1.0, rel=1e-14)
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    expected = np.trace(np.cov(vectors.T))
    assert trace_cov(statistics_of([[v] for v in vectors])).value == pytest.approx(expected, rel=1e-13)


def test_its_interval_is_the_jackknife_of_the_logarithm():
    values = np.array([3.0, 1.0, 2.0, 7.0])
    without = np.log([np.var(np.delete(values, m), ddof=1) for m in range(4)])
    expected = np.sqrt(3 / 4 * np.sum((without - without.mean()) ** 2))
    estimate = trace_cov(statistics_of(along(*values)))
    assert estimate.scale == "log"
    assert estimate.stderr == pytest.approx(expected, rel=1e-12)
