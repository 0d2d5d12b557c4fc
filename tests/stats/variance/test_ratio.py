"""The variance relative to the reference's, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import ratio


def test_it_is_paired_prompt_by_prompt():
    first, second = np.array([3.0, 1.0, 2.0, 7.0]), np.array([1.0, 1.0, 2.0, 5.0])
    without = [np.var(np.delete(first, m), ddof=1) / np.var(np.delete(second, m), ddof=1) for m in range(4)]
    estimate = ratio(statistics_of(along(*first), along(*second)))
    assert estimate.value == pytest.approx(np.var(first) / np.var(second), rel=1e-13)
    logs = np.log(without)
    assert estimate.stderr == pytest.approx(np.sqrt(0.75 * np.sum((logs - logs.mean()) ** 2)), rel=1e-12)


def test_a_multiple_of_the_reference_has_the_square_of_the_factor_without_error():
    estimate = ratio(statistics_of(along(3, 1, 2, 7), along(6, 2, 4, 14)))
    assert estimate.value == pytest.approx(0.25, rel=1e-14)
    assert estimate.stderr == pytest.approx(0.0, abs=1e-14)


def test_without_a_reference_it_is_not_known():
    assert np.isnan(ratio(statistics_of(along(3, 1, 2))).with_interval(0.95)).all()
