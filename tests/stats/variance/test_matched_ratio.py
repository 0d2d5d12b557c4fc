"""The variance at matched signal, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import matched_ratio, matched_trace_cov

FIRST, SECOND = np.array([5.0, 6.0, 5.0, 6.0, 5.5]), np.array([9.0, 10.0, 12.0, 10.0, 11.0])


def of(first, **keywords):
    """One gradient beside the second, which is reference and target."""
    return statistics_of(along(*first), along(*SECOND), along(*SECOND), **keywords)


def mean_over_pairs(first, second):
    return np.mean([first[i] * second[j] for i in range(5) for j in range(5) if i != j])


def test_it_is_the_ratio_after_scaling_onto_the_reference():
    coefficient = mean_over_pairs(FIRST, SECOND) / mean_over_pairs(SECOND, SECOND)
    expected = np.var(FIRST) / np.var(SECOND) / coefficient**2
    found = matched_ratio(of(FIRST)).with_interval(0.95)
    assert found[0] == pytest.approx(expected, rel=1e-12)
    assert found[1] < found[0] < found[2]


def test_it_depends_neither_on_scale_nor_on_sign():
    expected = matched_ratio(of(FIRST)).with_interval(0.95)
    for factor in (0.3, -0.3):
        found = matched_ratio(of(factor * FIRST)).with_interval(0.95)
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_known_coefficient_takes_the_place_of_the_estimate():
    value, low, high = matched_ratio(of(FIRST, known=0.5)).with_interval(0.95)
    assert value == pytest.approx(4 * np.var(FIRST) / np.var(SECOND), rel=1e-12)
    assert low < value < high
    assert np.isnan(matched_ratio(of(FIRST, known=0.0)).with_interval(0.95)).all()


def test_a_ray_without_a_value_is_given_where_the_projection_is_not_resolved():
    rng = np.random.default_rng(0)
    target = along(*(5.0 + rng.normal(size=60)))
    value, low, high = matched_ratio(statistics_of(along(*rng.normal(size=60)), target, target)).with_interval(0.95)
    assert np.isnan(value)
    assert low > 0
    assert high == np.inf
    assert np.isnan(matched_ratio(statistics_of(target)).with_interval(0.95)).all()
    assert np.isnan(matched_ratio(statistics_of(target, target)).with_interval(0.95)).all()


def test_both_scales_are_along_the_target():
    """Estimator and reference project on a third gradient."""
    third = np.array([7.0, 8.0, 7.5, 7.0, 8.5])
    scale = mean_over_pairs(FIRST, third) / mean_over_pairs(SECOND, third)
    found = matched_ratio(statistics_of(along(*FIRST), along(*SECOND), along(*third))).with_interval(0.95)
    assert found[0] == pytest.approx(np.var(FIRST) / np.var(SECOND) / scale**2, rel=1e-12)


def test_what_ranks_estimators_is_the_matched_ratio_up_to_a_common_factor():
    values = [matched_trace_cov(of(first)).value for first in (FIRST, SECOND)]
    ratio = matched_ratio(of(FIRST)).with_interval(0.95)[0]
    assert values[0] / values[1] == pytest.approx(ratio, rel=1e-12)
    halved = matched_trace_cov(statistics_of(along(*FIRST), along(*SECOND), known=0.5))
    assert halved.value == pytest.approx(4 * np.var(FIRST, ddof=1), rel=1e-12)
