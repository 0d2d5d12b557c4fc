"""The log-log slope of energies on a proxy."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.token_profiles import log_slope

ENERGIES = [np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0]), np.array([2.0, 6.0, 1.0]), np.array([5.0, 2.0, 3.0])]
PROXY = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 5.0, 3.0]), np.array([4.0, 4.0, 1.0])]
PROMPTS = np.array([0, 0, 1, 2])


def test_it_is_the_slope_of_least_squares():
    expected = stats.linregress(np.log(np.concatenate(PROXY)), np.log(np.concatenate(ENERGIES))).slope
    assert log_slope(ENERGIES, PROXY, PROMPTS).value == pytest.approx(expected)


def test_tokens_without_energy_are_left_out():
    energies = [np.append(e, 0.0) for e in ENERGIES]
    proxy = [np.append(p, 7.0) for p in PROXY]
    assert log_slope(energies, proxy, PROMPTS).value == pytest.approx(log_slope(ENERGIES, PROXY, PROMPTS).value)


def test_a_constant_proxy_has_no_slope():
    assert np.isnan(log_slope(ENERGIES, [np.ones(len(e)) for e in ENERGIES], PROMPTS).value)
