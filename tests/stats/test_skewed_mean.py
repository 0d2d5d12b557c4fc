"""Intervals of means that few prompts carry."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.intervals import SkewedMeanEstimate, skewed_mean, studentised_lognormal
from gradstats.stats.jackknife import Statistic, mean_statistic


def test_draws_are_those_of_lognormal_samples():
    """Zeros for the share left out; the quantiles are those of ten times as many samples by a loop."""
    rng, loop = np.random.default_rng(7), []
    for _ in range(20_000):
        sample = np.exp(1.2 * rng.normal(size=40)) * (rng.random(40) < 0.8)
        standard_error = sample.std(ddof=1) / np.sqrt(40) / sample.mean()
        loop.append(np.log(sample.mean() / (0.8 * np.exp(1.2**2 / 2))) / standard_error)
    found = studentised_lognormal(40, 1.2, 0.8)
    assert len(found) == 1999
    for at in (0.025, 0.5, 0.975):
        below = np.mean(np.array(loop) < np.quantile(found, at))
        assert below == pytest.approx(at, abs=4 * np.sqrt(at * (1 - at) / 1999))


def test_without_a_spread_the_interval_is_students():
    values = 5.0 + 1e-3 * np.random.default_rng(0).normal(size=30)
    mean = mean_statistic(values)
    low, high = skewed_mean(mean, values).confidence_interval(0.9)
    plain = mean.estimate("log").confidence_interval(0.9)
    assert np.log(high / low) == pytest.approx(np.log(plain[1] / plain[0]), rel=0.06)
    assert (low, high) >= (plain[0] * 0.9999, plain[1])
    constant = skewed_mean(mean_statistic(np.ones(5)), np.ones(5))
    assert constant.confidence_interval(0.95) == (1.0, 1.0)


def test_it_is_wider_above_where_the_tail_is_long_and_uses_the_upper_half_alone():
    rng = np.random.default_rng(1)
    values = np.exp(1.5 * rng.normal(size=100))
    found = skewed_mean(mean_statistic(values), values)
    plain = mean_statistic(values).estimate("log").confidence_interval(0.95)
    low, high = found.confidence_interval(0.95)
    assert low == plain[0]
    assert high > 1.05 * plain[1]
    # The spread does not see how small the small values are.
    smaller = np.where(values < np.quantile(values, 0.4), 1e-3 * values, values)
    other = skewed_mean(mean_statistic(smaller), smaller)
    assert isinstance(found, SkewedMeanEstimate)
    assert isinstance(other, SkewedMeanEstimate)
    upper = np.log(values[values > np.median(values)]) - np.median(np.log(values))
    assert found.spread == pytest.approx(np.sqrt(np.mean(upper**2)), rel=1e-12)
    assert other.spread == pytest.approx(found.spread, rel=0.05)
    assert skewed_mean(mean_statistic(values), np.where(values < 0.5, -0.1, values)).share == np.mean(values >= 0.5)


def test_what_is_not_known_stays_unknown():
    silent = Statistic(0.0, np.zeros(4))
    assert np.isnan(skewed_mean(silent, np.zeros(4)).confidence_interval(0.95)).all()
    two = Statistic(1.0, np.array([np.nan, np.nan]))
    assert np.isnan(skewed_mean(two, np.array([1.0, 2.0])).confidence_interval(0.95)).all()
    with pytest.raises(ValueError, match="confidence_level=2"):
        skewed_mean(mean_statistic(np.array([1.0, 2.0, 4.0])), np.array([1.0, 2.0, 4.0])).confidence_interval(2.0)


@pytest.mark.parametrize("draw", ["lognormal", "gamma", "lognormal of sd 2"])
def test_it_covers_means_that_student_does_not(draw):
    """60 prompts, 500 data sets: error of a share 0.01."""
    rng, hits, of_student = np.random.default_rng(3), 0, 0
    for _ in range(500):
        if draw == "gamma":
            values, truth = rng.gamma(0.4, size=60), 0.4
        else:
            sd = 2.0 if draw == "lognormal of sd 2" else 1.4
            values, truth = np.exp(sd * rng.normal(size=60)), np.exp(sd**2 / 2)
        mean = mean_statistic(values)
        low, high = skewed_mean(mean, values).confidence_interval(0.95)
        hits += low <= truth <= high
        margin = stats.t.ppf(0.975, 59) * mean.estimate("log").stderr
        of_student += abs(np.log(mean.value / truth)) <= margin
    assert 0.92 <= hits / 500 <= 0.99
    assert of_student <= hits
    assert draw == "gamma" or of_student / 500 < 0.9
