"""Sums over groups and over the others of a group, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import first_of_group, reduce_by_group, reduce_others, reference_sets

FEW = settings(max_examples=40, deadline=None)


def test_leave_one_out_keeps_its_digits_beside_a_dominant_sample():
    batch = Batch([0.0, 1.0, 0.3], [1_000_000, 1, 2], ["a"] * 3)
    advantages = est.length_weighted(alpha=2.0, loo=True).advantages(batch)
    assert advantages[0] == pytest.approx(0 - (1 * 1 + 0.3 * 16) / 17, rel=1e-12)


VALUES = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
INDEX = np.array([1, 0, 1, 2, 1, 0])


def test_groups_are_reduced_in_the_order_of_their_index():
    assert_array_equal(reduce_by_group(VALUES, INDEX, 3), [1 + 9, 3 + 4 + 5, 1])
    assert_array_equal(reduce_by_group(VALUES, INDEX, 3, np.maximum), [9, 5, 1])
    rows = np.stack([VALUES, -VALUES], axis=1)
    assert_array_equal(reduce_by_group(rows, INDEX, 3), [[10, -10], [12, -12], [1, -1]])


def test_the_others_of_a_group_by_hand():
    assert_array_equal(reduce_others(VALUES, INDEX, 3), [9, 9, 8, 0, 7, 1])
    assert_array_equal(reduce_others(VALUES, INDEX, 3, np.maximum, -np.inf), [5, 9, 5, -np.inf, 4, 1])


@FEW
@given(batch=batches(), operation=st.sampled_from([np.add, np.maximum, np.logaddexp]))
def test_the_others_of_a_group_against_a_loop(batch: Batch, operation: np.ufunc):
    index, n_groups = batch.group_index, batch.n_groups
    identity = 0.0 if operation is np.add else -np.inf
    reduced = reduce_others(batch.logprobs, index, n_groups, operation, identity)
    for row in range(len(index)):
        others = [batch.logprobs[other] for other in np.flatnonzero(index == index[row]) if other != row]
        expected = np.full(batch.mask.shape[1], identity)
        for values in others:
            expected = operation(expected, values)
        assert_allclose(reduced[row], expected, atol=1e-12)


def test_the_first_of_each_group():
    assert_array_equal(first_of_group(VALUES, INDEX, 3), [3, 1, 3, 1, 3, 1])


def test_sets_are_groups_or_the_batch():
    batch = Batch(VALUES, [1] * 6, INDEX)
    index, n_sets = reference_sets(batch, "group")
    assert_array_equal(index, INDEX)
    assert n_sets == 3
    index, n_sets = reference_sets(batch, "batch")
    assert_array_equal(index, [0] * 6)
    assert n_sets == 1
