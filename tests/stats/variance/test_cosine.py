"""The cosine to the target, by hand."""

import numpy as np
import pytest
from gradients_by_hand import statistics_of

from gradstats.stats.variance.estimates import cosine

TARGET = [[[5.0, 0.1]], [[6.0, -0.1]], [[5.5, 0.2]], [[6.5, -0.2]]]
ROTATION = np.array([[0.6, 0.8], [-0.8, 0.6]])


def test_it_is_that_of_the_expectations():
    rotated = [np.array(groups) @ ROTATION for groups in TARGET]
    assert cosine(statistics_of(rotated, target=TARGET)).with_interval(0.95)[0] == pytest.approx(0.6, abs=0.02)


def test_a_multiple_of_the_target_has_a_cosine_of_one_without_error():
    value, low, high = cosine(
        statistics_of([[[0.1 * x, 0.1 * y]] for [[x, y]] in TARGET], target=TARGET)
    ).with_interval(0.95)
    assert (value, low, high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)


def test_no_completion_is_paired_with_itself():
    """Noise that both share and whose expectation is 0 does not make a cosine."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(400, 3)) * [0.0, 1.0, 1.0]
    first = [[noise + np.array([1.0, 0.0, 0.0])] for noise in shared]
    second = [[noise + np.array([1.0, 1.0, 0.0])] for noise in shared]
    value, low, high = cosine(statistics_of(first, target=second)).with_interval(0.99)
    assert low < np.sqrt(0.5) < high
    assert value < 0.9


def test_no_value_is_given_without_a_target_or_a_signal():
    assert np.isnan(cosine(statistics_of(TARGET)).with_interval(0.95)).all()
    noise = [[[1.0, 0.0]], [[-1.0, 0.0]], [[0.5, 0.2]], [[-0.6, 0.3]]]
    value, low, high = cosine(statistics_of(noise, target=TARGET)).with_interval(0.95)
    assert np.isnan(value)
    assert (low, high) == (-1.0, 1.0)
