"""The share of groups kept, with Wilson's interval."""

import numpy as np
import pytest

from gradstats.stats.variance.estimates import kept_share


def test_independent_groups_have_wilsons_interval():
    """Ten of twenty, with the standard error of a mean of independent groups (ddof 1): n_eff = 19."""
    value, low, high = kept_share(np.repeat([0.0, 1.0], 10)).with_interval(0.95)
    n, z = 19.0, 1.959963984540054
    margin = z * np.sqrt(0.25 / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    assert (value, low, high) == pytest.approx((0.5, 0.5 - margin, 0.5 + margin), rel=1e-9)


def test_a_share_of_all_or_none_has_an_interval_too():
    value, low, high = kept_share(np.ones(20)).with_interval(0.95)
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(20 / (20 + 1.959963984540054**2), rel=1e-9)
    value, low, high = kept_share(np.zeros(20)).with_interval(0.95)
    assert (value, low) == (0.0, 0.0)
    assert high < 0.2
