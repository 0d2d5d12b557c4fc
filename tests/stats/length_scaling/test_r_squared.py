"""The share of the variance that a line explains, against SciPy's correlation."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.length_scaling.regression import r_squared, squared_correlation


def test_of_least_squares_both_are_the_squared_correlation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    y = 1.0 + 2.0 * x + rng.normal(size=50)
    line = stats.linregress(x, y)
    fitted = line.intercept + line.slope * x
    assert r_squared(y - fitted, y - y.mean()) == pytest.approx(line.rvalue**2)
    assert squared_correlation(y, fitted) == pytest.approx(line.rvalue**2)


def test_where_nothing_varies_it_is_nan():
    constant = np.ones(5)
    assert np.isnan(r_squared(constant - constant, constant - constant.mean()))
    assert np.isnan(squared_correlation(constant, np.arange(5.0)))
