"""Statistics that carry their delete-one replicates."""

import warnings

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.jackknife import (
    Estimate,
    Statistic,
    covariance_of,
    influential_prompts,
    mean_statistic,
    satterthwaite_degrees,
)

RNG = np.random.default_rng(0)
X, Y = RNG.normal(3.0, 1.0, 20), RNG.normal(5.0, 1.0, 20)


def mean_of(values, sketch=None):
    return Statistic(float(values.mean()), np.array([np.delete(values, i).mean() for i in range(len(values))]), sketch)


def test_a_mean_gets_the_student_interval():
    estimate = mean_of(X).estimate()
    expected = stats.t.interval(0.9, 19, loc=X.mean(), scale=stats.sem(X))
    np.testing.assert_allclose(estimate.confidence_interval(0.9), expected, rtol=1e-12)
    low, high = mean_of(X).estimate("log").confidence_interval()
    assert np.sqrt(low * high) == pytest.approx(X.mean())
    assert np.isnan(mean_of(-X).estimate("log").stderr)
    assert np.isnan(Estimate(0.0, 0.0, "log", 5.0).confidence_interval()).all()


@pytest.mark.parametrize(
    ("combine", "function"),
    [
        (lambda a, b: a + b, lambda a, b: a + b),
        (lambda a, b: a - b.scaled(0.5), lambda a, b: a - 0.5 * b),
        (lambda a, b: a * b, lambda a, b: a * b),
        (lambda a, b: a / b, lambda a, b: a / b),
        (lambda a, b: b / (a.root() * a.root() * b.root()), lambda a, b: np.sqrt(b) / a),
    ],
)
def test_arithmetic_acts_on_value_replicates_and_derivative(combine, function):
    first, second = mean_of(X, np.array([[0.3, 0.0]])), mean_of(Y, np.array([[0.1, -0.2]]))
    result = combine(first, second)
    assert result.value == pytest.approx(function(first.value, second.value))
    np.testing.assert_allclose(result.replicates, function(first.replicates, second.replicates))
    step = 1e-6
    for axis in range(2):
        moved = function(first.value + step * first.sketch[0, axis], second.value + step * second.sketch[0, axis])
        assert result.sketch[0, axis] == pytest.approx((moved - result.value) / step, rel=1e-4)


@pytest.mark.parametrize(("scale", "unit"), [("raw", 1.0), ("log", X.mean())])
def test_the_sketch_adds_its_variance_on_either_scale(scale, unit):
    exact, sketched = mean_of(X).estimate(scale), mean_of(X, np.array([[0.3, 0.4]])).estimate(scale)
    assert sketched.stderr**2 == pytest.approx(exact.stderr**2 + 0.25 / unit**2)


@pytest.mark.parametrize("level", [0.0, 1.0, 2.0, -0.5, np.nan])
def test_a_level_that_is_not_a_probability_is_refused(level):
    with pytest.raises(ValueError, match=f"^confidence_level={level:g} must lie between 0 and 1, for example 0.95$"):
        mean_of(X).estimate().confidence_interval(level)


def test_pvalue_is_that_of_students_test():
    values = np.random.default_rng(1).normal(0.3, 1.0, 20)
    estimate = mean_of(values).estimate()
    expected = stats.ttest_1samp(values, 0.1)
    assert estimate.pvalue(0.1) == pytest.approx(expected.pvalue)
    below = 2.0 * float(estimate.value)  # the estimate is smaller than what is expected
    assert estimate.pvalue(below, only_above=True) == 1.0
    assert estimate.pvalue(below) < 1.0
    exact = Estimate(1.0, 0.0, "raw", 10.0)
    assert (exact.pvalue(1.0), exact.pvalue(0.0)) == (1.0, 0.0)


def test_the_covariance_of_statistics_is_that_of_their_combinations():
    rng = np.random.default_rng(0)
    statistics = [
        Statistic(1.0, rng.normal(size=30), rng.normal(3.0, 1.0, size=(4, 5, 2)), 0.01 * rng.normal(size=(3, 31)))
        for _ in range(3)
    ]
    coefficients = [0.5, -2.0, 3.5]
    first, second, third = (one.scaled(by) for one, by in zip(statistics, coefficients, strict=True))
    expected = (first + second + third).variance()
    assert expected > 0
    covariance = covariance_of(statistics)
    assert coefficients @ covariance @ coefficients == pytest.approx(expected, rel=1e-12)
    one_fold = [Statistic(one.value, one.replicates, one.sketch[:1]) for one in statistics]
    assert np.diag(covariance_of(one_fold)) == pytest.approx([one.variance() for one in one_fold], rel=1e-12)


def test_what_is_not_known_gives_no_warning():
    zero = Statistic(0.0, np.array([0.0, 0.1]), np.array([0.0, 1.0]), np.array([[0.0, 1.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate = mean_statistic(np.array([2.0])).estimate()  # over a single prompt
        slopes = [zero.root().sketch, (zero / zero).sketch]  # at zero
    assert estimate.value == 2.0
    assert np.isnan(estimate.confidence_interval(0.95)).all()
    assert not np.isfinite(slopes).any()


def test_what_is_zero_but_for_rounding_without_a_prompt_has_no_interval_of_its_logarithm():
    """Whether rounding leaves it above 0 decides nothing: one prompt carries the value."""
    for left in (1e-17, 0.0, -1e-17):
        assert np.isnan(Statistic(2.0, np.array([2.1, 1.9, left])).estimate("log").stderr)
    assert Statistic(2.0, np.array([2.1, 1.9, 1e-3])).estimate("log").stderr > 1.0


def test_prompts_of_equal_influence_are_counted():
    halves = np.repeat([1.0, -1.0], 5)
    assert influential_prompts(halves) == pytest.approx(10.0)
    assert influential_prompts(7.0 + 1e-3 * halves) == pytest.approx(10.0)
    few = np.r_[1.0, -1.0, np.zeros(98)]
    assert influential_prompts(np.stack([few, 4.0 * few])) == pytest.approx([2.0, 2.0])
    assert np.isinf(influential_prompts(np.ones(4)))


def test_degrees_of_a_hand_computed_case_and_of_the_limits():
    assert satterthwaite_degrees(5.0, 30) == pytest.approx(2.0 / (1 / 5 - 1 / 30))
    assert satterthwaite_degrees([10.0, 30.0, np.inf], 30) == pytest.approx([30.0, np.inf, np.inf])
    assert satterthwaite_degrees(1.0, 10**9) == pytest.approx(2.0)


def test_the_variance_of_a_variance_is_that_of_a_chi_square_with_so_many_degrees():
    """Influences of three sizes, of random sign: the relative variance of the mean square is 2/ν."""
    rng = np.random.default_rng(0)
    values, m = np.array([0.2, 1.0, 3.0]), 60
    drawn = rng.choice(values, p=(0.6, 0.3, 0.1), size=(40000, m)) * rng.choice([-1.0, 1.0], size=(40000, m))
    squares = (drawn**2).mean(axis=1)
    # n of a large sample, scaled to M prompts
    n = influential_prompts(drawn.ravel()) / 40000
    assert 2.0 / satterthwaite_degrees(n, m) == pytest.approx(squares.var() / squares.mean() ** 2, rel=0.03)
