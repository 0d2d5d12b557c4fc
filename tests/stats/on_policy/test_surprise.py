"""Surprise over entropy."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.stats.token_profiles import excess_of, surprise


def test_by_hand():
    excess = [np.array([1.0, -0.5]), np.array([0.5]), np.array([2.0])]
    estimate = surprise(excess, np.array([0, 0, 1]))
    assert estimate.value == pytest.approx((0.5 + 2.0) / 2.0)


def test_a_coin_scored_as_it_was_drawn_has_none():
    """The expectation over the coin is exactly 0."""
    chances = np.array([0.9, 0.1])
    entropy = -float(chances @ np.log(chances))
    measured = SimpleNamespace(
        metadata={},
        logprobs=[np.log(chances)],
        entropy=[np.full(2, entropy)],
        rollouts=SimpleNamespace(masks=[np.ones(2, dtype=bool)]),
    )
    assert chances @ excess_of(measured)[0] == pytest.approx(0.0, abs=1e-15)


def test_only_counted_tokens_enter():
    measured = SimpleNamespace(
        metadata={},
        logprobs=[np.array([-1.0, -1e6])],
        entropy=[np.array([0.25, 0.0])],
        rollouts=SimpleNamespace(masks=[np.array([True, False])]),
    )
    np.testing.assert_allclose(excess_of(measured)[0], [0.75])
