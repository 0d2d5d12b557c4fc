"""The variance at matched signal, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.matched_ratio import matched_ratio

FIRST, SECOND = np.array([5.0, 6.0, 5.0, 6.0, 5.5]), np.array([9.0, 10.0, 12.0, 10.0, 11.0])


def mean_over_pairs(first, second):
    return np.mean([first[i] * second[j] for i in range(5) for j in range(5) if i != j])


def test_it_is_the_ratio_after_scaling_onto_the_reference():
    coefficient = mean_over_pairs(FIRST, SECOND) / mean_over_pairs(SECOND, SECOND)
    expected = np.var(FIRST) / np.var(SECOND) / coefficient**2
    found = matched_ratio(statistics_of(along(*FIRST), along(*SECOND))).with_interval(0.95)
    assert found[0] == pytest.approx(expected, rel=1e-12)
    assert found[1] < found[0] < found[2]


def test_it_depends_neither_on_scale_nor_on_sign():
    expected = matched_ratio(statistics_of(along(*FIRST), along(*SECOND))).with_interval(0.95)
    for factor in (0.3, -0.3):
        found = matched_ratio(statistics_of(along(*(factor * FIRST)), along(*SECOND))).with_interval(0.95)
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_known_coefficient_takes_the_place_of_the_estimate():
    value, low, high = matched_ratio(statistics_of(along(*FIRST), along(*SECOND), known=0.5)).with_interval(0.95)
    assert value == pytest.approx(4 * np.var(FIRST) / np.var(SECOND), rel=1e-12)
    assert low < value < high
    assert np.isnan(matched_ratio(statistics_of(along(*FIRST), along(*SECOND), known=0.0)).with_interval(0.95)).all()


def test_nothing_is_given_where_a_signal_is_not_resolved():
    noise = along(3, -2, 1, 0, -2)
    for first, second in ((noise, along(*SECOND)), (along(*FIRST), noise)):
        assert np.isnan(matched_ratio(statistics_of(first, second)).with_interval(0.95)).all()
    assert np.isnan(matched_ratio(statistics_of(noise)).with_interval(0.95)).all()
