"""Bins of equal counts, and between edges."""

import numpy as np
import pytest

from gradstats.stats.variance.shares import binned, equal_count_bins, inside_bins

VALUES = np.array([0.5, 0.1, 0.9, 0.5, 0.2, 0.7, 0.5, 0.5])


def test_equal_counts_with_ties_make_fewer_bins():
    np.testing.assert_allclose(equal_count_bins(VALUES, 2), [[0.1, 0.2], [0.5, 0.9]])
    np.testing.assert_allclose(equal_count_bins(VALUES, 4), [[0.1, 0.2], [0.5, 0.5], [0.7, 0.9]])
    np.testing.assert_allclose(equal_count_bins(VALUES, 1), [[0.1, 0.9]])
    lengths = np.arange(1, 101)
    bins = equal_count_bins(lengths, 4)
    assert bins.tolist() == [[1, 25], [26, 50], [51, 75], [76, 100]]
    assert bins.dtype == lengths.dtype
    assert [int(one.sum()) for one in inside_bins(lengths, bins)] == [25] * 4


def test_each_value_lies_in_one_bin():
    for bins in (1, 3, 8, [0.0, 0.5, 1.0], (0.1, 0.9)):
        ends, inside = binned(VALUES, bins)
        np.testing.assert_array_equal(np.sum(inside, axis=0), 1)
        for (low, high), one in zip(ends, inside, strict=True):
            assert ((low <= VALUES[one]) & (VALUES[one] <= high)).all()


def test_a_bin_holds_its_lower_edge_and_the_last_its_upper():
    ends, inside = binned(VALUES, [0.1, 0.5, 0.9])
    assert ends.tolist() == [[0.1, 0.5], [0.5, 0.9]]
    assert [int(one.sum()) for one in inside] == [2, 6]


def test_unusable_bins_are_refused():
    with pytest.raises(ValueError, match="bins=0 must be at least 1"):
        binned(VALUES, 0)
    for edges in ([0.5], [0.5, 0.5], [1.0, 0.0]):
        with pytest.raises(ValueError, match="at least two ascending edges"):
            binned(VALUES, edges)
    with pytest.raises(ValueError, match="leaves 1 values outside, such as 0.9: widen them"):
        binned(VALUES, [0.0, 0.8])
