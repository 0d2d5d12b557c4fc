"""Fieller's sets against the inequality that defines them, and how often they cover."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.intervals import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import mean_statistic


def ratio_of(numerator, denominator, numerator_variance, covariance, denominator_variance):
    r = numerator / denominator
    contrast = numerator_variance - 2 * r * covariance + r**2 * denominator_variance
    return FiellerRatio(r, denominator, contrast, covariance - r * denominator_variance, denominator_variance, 30.0)


def inside(numbers, psi, level):
    numerator, denominator, numerator_variance, covariance, denominator_variance = numbers
    variance = numerator_variance - 2 * psi * covariance + psi**2 * denominator_variance
    return (numerator - psi * denominator) ** 2 <= stats.t.ppf(0.5 + level / 2, 30) ** 2 * variance


@pytest.mark.parametrize(
    ("numbers", "n_pieces"),
    [((2.0, 5.0, 0.3, 0.1, 0.5), 1), ((6.0, 0.5, 0.3, 0.1, 0.5), 2), ((0.2, 0.1, 0.3, 0.1, 0.5), 1)],
)
def test_the_set_is_what_the_inequality_says(numbers, n_pieces):
    ratio = ratio_of(*numbers)
    pieces = ratio.solution(0.95)
    assert len(pieces) == n_pieces
    for psi in np.linspace(-60, 60, 4001):
        assert inside(numbers, psi, 0.95) == any(low <= psi <= high for low, high in pieces)
    assert ratio.is_bounded(0.95) == np.isfinite(pieces).all()


def test_the_set_inside_a_parameter_space():
    unresolved = ratio_of(6.0, 0.5, 0.3, 0.0, 0.5)
    low, high = unresolved.within(0.95, 0.0, np.inf)
    assert 0 < low < 12
    assert high == np.inf
    negative = ratio_of(6.0, -5.0, 0.3, 0.0, 0.5)
    assert np.isnan(negative.within(0.95, 0.0, np.inf)).all()
    assert np.isnan(FiellerRatio(np.nan, 1.0, 1.0, 0.0, 1.0, 9.0).within(0.95, 0.0, 1.0)).all()


def test_a_ratio_without_error_is_a_point():
    values = np.array([3.0, 4.0, 2.0, 3.5])
    ratio = fieller_ratio(mean_statistic(2 * values), mean_statistic(values))
    assert ratio.value == 2.0
    assert ratio.solution(0.95)[0] == pytest.approx((2.0, 2.0), abs=1e-14)
    with pytest.raises(ValueError, match=r"confidence_level=1 must lie between 0 and 1"):
        ratio.solution(1.0)


def test_variances_are_those_of_the_means():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 12)) + np.array([[1.0], [2.0]])
    ratio = fieller_ratio(mean_statistic(x), mean_statistic(y))
    expected = np.cov(x - ratio.value * y, y) / 12
    assert ratio.contrast_variance == pytest.approx(expected[0, 0], rel=1e-12)
    assert ratio.covariance == pytest.approx(expected[0, 1], rel=1e-10)
    assert ratio.denominator_variance == pytest.approx(expected[1, 1], rel=1e-12)


@pytest.mark.parametrize("denominator", [0.0, 0.3, 3.0])
def test_it_covers_however_near_to_zero_the_denominator_is(denominator):
    """Means of 20 pairs whose denominator has a standard error of 0.22; 1500 data sets, error of a share 0.0056."""
    rng, hits, truth = np.random.default_rng(1), 0, 1.0
    for _ in range(1500):
        y = denominator + rng.normal(size=20)
        x = truth * denominator + 0.5 * (y - denominator) + rng.normal(size=20)
        ratio = fieller_ratio(mean_statistic(x), mean_statistic(y))
        hits += any(low <= truth <= high for low, high in ratio.solution(0.95))
    assert hits / 1500 == pytest.approx(0.95, abs=0.02)
