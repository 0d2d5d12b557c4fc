"""The share of bias, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import bias_share

TARGET = np.array([5.0, 6.0, 5.0, 6.0, 5.5])


@pytest.mark.parametrize("size", [1, 10, 128])
def test_it_is_bias_over_mean_squared_error_of_a_batch(size):
    """A constant difference of 0.4: bias² = 0.16, and the variance of a batch is the sample variance over its size."""
    gradient = statistics_of(along(*(TARGET + 0.4)), target=along(*TARGET), prompts_per_batch=size)
    expected = 0.16 / (0.16 + np.var(TARGET, ddof=1) / size)
    assert bias_share(gradient).with_interval(0.95)[0] == pytest.approx(expected, rel=1e-12)


def test_the_target_itself_has_none():
    gradient = statistics_of(along(*TARGET), target=along(*TARGET))
    assert bias_share(gradient).with_interval(0.95) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_an_unbiased_estimate_may_be_negative():
    changed = TARGET - np.array([0.5, -0.5, 0.5, -0.5, 0.0])
    value, low, _ = bias_share(
        statistics_of(along(*changed), target=along(*TARGET), prompts_per_batch=1)
    ).with_interval(0.95)
    assert value == pytest.approx(-0.05 / (np.var(changed, ddof=1) - 0.05), rel=1e-12)
    assert low == 0.0


def test_without_a_target_it_is_not_known():
    assert np.isnan(bias_share(statistics_of(along(*TARGET))).with_interval(0.95)).all()
