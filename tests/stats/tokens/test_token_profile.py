"""Bins of token profiles."""

import numpy as np

from gradstats.stats.token_profiles import doubling_bins


def test_bins_double():
    for longest in (1, 2, 3, 8, 21):
        first, last = doubling_bins(longest)
        covered = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        np.testing.assert_array_equal(covered, np.arange(1, longest + 1))
    assert doubling_bins(21)[1].tolist() == [1, 2, 4, 8, 16, 21]
