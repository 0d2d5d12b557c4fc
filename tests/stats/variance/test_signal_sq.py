"""The squared norm of the expected gradient, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.estimates import is_resolved, signal_sq


def test_it_is_the_mean_over_pairs_of_different_prompts():
    assert signal_sq(statistics_of(along(3, 1, 2))).value == pytest.approx((3 * 1 + 3 * 2 + 1 * 2) / 3, rel=1e-14)


def test_it_may_be_negative():
    assert signal_sq(statistics_of(along(1, -1, 0))).value == pytest.approx(-1 / 3, rel=1e-14)


def test_resolved_means_that_the_interval_lies_above_zero():
    assert is_resolved(Estimate(1.0, 0.4, "raw", np.inf), 0.95)
    assert not is_resolved(Estimate(1.0, 0.6, "raw", np.inf), 0.95)
    assert is_resolved(Estimate(1.0, 0.6, "raw", np.inf), 0.8)
