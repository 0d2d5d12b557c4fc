"""The temperatures that surprises exclude."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.on_policy import TEMPERATURES, TemperatureTest, temperature_test


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("relative", [0.6, 0.93, 1.0, 1.3])
def test_the_tilted_surprise_has_mean_zero_at_the_temperature_that_was_drawn_at(relative):
    """Summed over the tokens of a policy, exactly; elsewhere it is not 0, above for higher temperatures drawn."""
    logits = 2.0 * np.random.default_rng(0).normal(size=12)
    scored, drawn = softmax(logits), softmax(logits / relative)
    excess = -np.log(scored) + np.sum(scored * np.log(scored))

    def mean(temperature):
        return np.sum(drawn * excess * np.exp(-(1.0 - 1.0 / temperature) * excess))

    assert mean(relative) == pytest.approx(0.0, abs=1e-14)
    assert mean(0.9 * relative) > 0.01
    assert mean(1.1 * relative) < -0.01


def test_means_and_errors_are_those_of_prompts():
    excess = [np.array([0.5, -0.2]), np.array([1.0]), np.array([-0.3, 0.1, 0.4])]
    test = temperature_test(excess, np.array([0, 0, 1]))
    for at in (0, 17, 40):
        shift = 1.0 - 1.0 / TEMPERATURES[at]
        one, two, three = (np.sum(d * np.exp(-shift * d)) for d in excess)
        values = np.array([(one + two) / 2, three])
        assert test.means[at] == pytest.approx(values.mean(), rel=1e-12)
        assert test.stderrs[at] == pytest.approx(stats.sem(values), rel=1e-12)
    assert test.degrees == 1.0


def test_ends_by_hand():
    at = np.log(TEMPERATURES)
    ones = np.ones(len(at))
    # t = (0.02 − log τ)/0.05 lies within ±1.96 for log τ in 0.02 ± 0.098.
    low, high = TemperatureTest(TEMPERATURES, (0.02 - at) / 0.05, ones, np.inf).compatible(0.95)
    z = stats.norm.ppf(0.975)
    assert (low, high) == pytest.approx((np.exp(0.02 - 0.05 * z), np.exp(0.02 + 0.05 * z)), rel=1e-9)
    assert TemperatureTest(TEMPERATURES, -at, ones, np.inf).compatible(0.95) == (0.0, np.inf)
    for means, stderrs in ((9.0 - at, ones), (-9.0 - at, ones), (-at, 0.0 * ones)):
        assert np.isnan(TemperatureTest(TEMPERATURES, means, stderrs, np.inf).compatible(0.95)).all()
