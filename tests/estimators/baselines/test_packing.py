"""Packing of counted tokens, and rewards-to-go, by hand."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import discounted_sums, pack, packed_rewards, rewards_to_go, unpack

MASK = np.array([[True, False, True, False], [False, True, True, True]])


def test_counted_tokens_move_to_the_left_and_back():
    values = np.array([[1.0, 8.0, 2.0, 9.0], [7.0, 3.0, 4.0, 5.0]])
    packed = pack(values, MASK)
    assert_array_equal(packed, [[1, 2, 8, 9], [3, 4, 5, 7]])
    assert_array_equal(unpack(packed, MASK), values)


def test_discounted_sums_by_hand():
    values = np.array([[1.0, 2.0, 4.0]])
    assert_array_equal(discounted_sums(values, 0.5), [[1 + 1 + 1, 2 + 2, 4]])
    assert_array_equal(discounted_sums(values, 1.0), [[7, 6, 4]])
    assert_array_equal(discounted_sums(values, 0.0), values)
    assert_array_equal(values, [[1, 2, 4]])


def test_a_reward_without_tokens_stands_on_the_last_counted_token():
    batch = Batch([3, 5], [2, 3], ["a", "b"], mask=MASK)
    assert_array_equal(packed_rewards(batch), [[0, 3, 0, 0], [0, 0, 5, 0]])
    assert_array_equal(rewards_to_go(batch), [[3, 0, 3, 0], [0, 5, 5, 5]])
    assert_array_equal(rewards_to_go(batch, 0.5), [[1.5, 0, 3, 0], [0, 1.25, 2.5, 5]])


def test_returns_discount_by_counted_token_and_skip_masked_rewards():
    token_rewards = np.array([[1.0, 100.0, 2.0, 100.0], [100.0, 1.0, 0.0, 4.0]])
    batch = Batch([3, 5], [2, 3], ["a", "b"], mask=MASK, token_rewards=token_rewards)
    assert_array_equal(rewards_to_go(batch, 0.5), [[1 + 1, 0, 2, 0], [0, 1 + 0 + 1, 2, 4]])
