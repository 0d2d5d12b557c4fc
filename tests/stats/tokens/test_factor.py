"""By what factor a proxy is off."""

import numpy as np
import pytest

from gradstats.stats.token_profiles import common_scale, factor

ENERGIES = [np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0]), np.array([2.0, 6.0, 1.0]), np.array([5.0, 2.0, 3.0])]
PROXY = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 5.0, 3.0]), np.array([4.0, 4.0, 1.0])]
PROMPTS = np.array([0, 0, 1, 2])


def test_by_hand():
    e, p = np.concatenate(ENERGIES), np.concatenate(PROXY)
    scale = e.sum() / p.sum()
    assert common_scale(ENERGIES, PROXY) == pytest.approx(scale)
    # The statistic is a quotient of means over prompts of sums, in which the number of prompts cancels.
    expected = np.exp(e @ np.abs(np.log(e / (scale * p))) / e.sum())
    assert factor(ENERGIES, PROXY, PROMPTS).value == pytest.approx(expected)


def test_a_proxy_in_another_unit_is_perfect():
    assert factor(ENERGIES, [7.0 * e for e in ENERGIES], PROMPTS).value == pytest.approx(1.0)


def test_a_proxy_of_zeros_has_no_scale():
    assert np.isnan(common_scale(ENERGIES, [np.zeros(len(e)) for e in ENERGIES]))
