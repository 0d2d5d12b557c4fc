"""Where a curve of variances is lowest."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.minimiser import minimiser_of

GRID = np.linspace(-1.0, 1.0, 9)


def parabolas(rng, m=400, at=0.2, noise=1.0):
    """Curves (β − b_m)² + 1, one a prompt, whose mean is lowest at the mean of b."""
    lowest = at + noise * rng.normal(size=m)
    return [mean_statistic((value - lowest) ** 2 + 1.0) for value in GRID], lowest


def degrees_of_freedom(influence):
    """Satterthwaite's, of the mean of values of influence."""
    psi = influence - influence.mean()
    return 2 / ((psi**4).sum() / (psi**2).sum() ** 2 - 1 / len(psi))


def test_a_parabola_has_the_minimiser_and_the_interval_of_its_mean():
    variances, lowest = parabolas(np.random.default_rng(0))
    found = minimiser_of(GRID, variances)
    assert found.value == pytest.approx(lowest.mean(), abs=1e-12)
    # V′ = 2(β − mean b) has the standard error 2·se(mean b) at every β.
    margin = 1.9659 * lowest.std(ddof=1) / np.sqrt(len(lowest))
    expected = [lowest.mean() - margin, lowest.mean() + margin]
    np.testing.assert_allclose(found.confidence_interval(), expected, atol=0.25 / 16)
    # The cost of another parameter.
    quotient, low, high = found.relative_to_lowest(0.9)
    best, there = (np.mean((at - lowest) ** 2 + 1.0) for at in (lowest.mean(), 0.9))
    assert quotient == pytest.approx(there / best)
    assert low < quotient < high
    assert found.relative_to_lowest(found.value)[0] == pytest.approx(1.0)
    assert np.isnan(found.relative_to_lowest(1.5)).all()


def test_a_slope_that_few_prompts_carry_has_fewer_degrees_of_freedom():
    rng = np.random.default_rng(6)
    lowest = 0.1 * rng.standard_t(3, size=40)
    lowest[:2] += (0.9, -0.7)
    found = minimiser_of(GRID, [mean_statistic((value - lowest) ** 2 + 1.0) for value in GRID])
    degrees = degrees_of_freedom(lowest)  # V′ = 2(β − mean b) has the influence b at every β
    assert 3 < degrees < 15
    margin = stats.t.ppf(0.95, degrees) * lowest.std(ddof=1) / np.sqrt(40)
    assert found.confidence_interval(0.9) == pytest.approx((lowest.mean() - margin, lowest.mean() + margin), rel=1e-9)
    # The cost of a parameter rests on the same prompts: log of V(β) over V(mean b) = 1 + var b.
    quotient, low, high = found.relative_to_lowest(0.5, 0.9)
    assert np.log(high / quotient) == pytest.approx(np.log(quotient / low))
    best, there = (mean_statistic((value - lowest) ** 2 + 1.0) for value in (lowest.mean(), 0.5))
    psi = (there / best).logarithm().pseudo_values
    expected = stats.t.ppf(0.95, degrees_of_freedom(psi)) * psi.std(ddof=1) / np.sqrt(40)
    assert np.log(high / quotient) == pytest.approx(expected, rel=0.05)  # to first order


def test_a_curve_that_is_lowest_at_an_end():
    found = minimiser_of(GRID, parabolas(np.random.default_rng(2), at=3.0, noise=0.1)[0])
    assert (found.value, *found.confidence_interval()) == (1.0, 1.0, 1.0)
    assert found.is_at_an_end
    assert not minimiser_of(GRID, parabolas(np.random.default_rng(2))[0]).is_at_an_end


def test_a_constant_or_unknown_curve_has_no_minimiser():
    flat = [mean_statistic(np.ones(5))] * 9
    assert np.isnan([minimiser_of(GRID, flat).value, *minimiser_of(GRID, flat).confidence_interval()]).all()
    assert minimiser_of(GRID, [*flat[:8], None]) is None
    of_two = minimiser_of(GRID, [Statistic(float(value**2 + 1.0), np.full(2, np.nan)) for value in GRID])
    assert of_two.value == pytest.approx(0.0)
    assert np.isnan(of_two.confidence_interval()).all()


def test_of_few_values_one_is_chosen():
    rng = np.random.default_rng(3)
    values = np.array([1.0, 2.0, 4.0])
    shared = rng.normal(size=200)
    variances = [mean_statistic(10.0 + shared + shift + 0.1 * rng.normal(size=200)) for shift in (3.0, 0.0, 0.001)]
    found = minimiser_of(values, variances)
    assert found.discrete
    assert found.value in (2.0, 4.0)
    assert found.confidence_interval() == (2.0, 4.0)
