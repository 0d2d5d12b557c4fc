"""The rank correlation of a proxy."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.proxy_quality import rank_correlation

ENERGIES = [np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0]), np.array([2.0, 6.0, 1.0]), np.array([5.0, 2.0, 3.0])]
PROXY = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 5.0, 3.0]), np.array([4.0, 4.0, 1.0])]
PROMPTS = np.array([0, 0, 1, 2])


def test_it_is_spearmans_averaged_over_prompts():
    """The completion of two tokens is too short to count."""
    expected = np.mean([stats.spearmanr(ENERGIES[row], PROXY[row]).statistic for row in (0, 2, 3)])
    assert rank_correlation(ENERGIES, PROXY, PROMPTS).value == pytest.approx(expected)


def test_a_constant_proxy_has_no_ranks():
    assert np.isnan(rank_correlation(ENERGIES, [np.ones(len(e)) for e in ENERGIES], PROMPTS).value)
