"""Noise to signal, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import noise_to_signal


def test_it_is_variance_over_signal():
    values = np.array([5.0, 6.0, 5.0, 6.0, 5.5])
    pairs = (values.sum() ** 2 - (values**2).sum()) / 20
    value, low, high = noise_to_signal(statistics_of(along(*values))).with_interval(0.95)
    assert value == pytest.approx(np.var(values, ddof=1) / pairs, rel=1e-12)
    assert 0 < low < value < high


def test_it_does_not_depend_on_the_unit():
    values = np.array([5.0, 6.0, 5.0, 6.0, 5.5])
    expected = noise_to_signal(statistics_of(along(*values))).with_interval(0.95)
    assert noise_to_signal(statistics_of(along(*(7 * values)))).with_interval(0.95) == pytest.approx(expected)


def test_without_a_resolved_signal_only_the_lower_end_is_known():
    noise = np.random.default_rng(0).normal(size=60)
    value, low, high = noise_to_signal(statistics_of(along(*noise))).with_interval(0.95)
    assert np.isnan(value)
    assert low > 0
    assert high == np.inf
