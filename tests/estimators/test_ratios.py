"""Ratios of the scored policy to the sampler, and when they count as 1."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from off_policy_pair import off_policy_batch, policy_pair

from gradstats.estimators import Batch
from gradstats.estimators.ratios import (
    NEGLIGIBLE_CHI_SQUARED,
    chi_squared,
    exponential,
    log_ratios,
    sequence_log_ratios,
    sequence_ratios,
    without_negligible_ratios,
)


def batch_with(gaps: list[list[float]]) -> Batch:
    """Completions of two tokens, the second of completion 1 masked out, with given log-ratios."""
    mask = np.array([[1, 1], [1, 0]])
    old = np.full((2, 2), -1.0)
    return Batch([1, 0], [2, 1], ["a", "a"], mask, logprobs=old + np.array(gaps), old_logprobs=old)


def test_ratios_by_hand():
    batch = batch_with([[0.1, -0.3], [0.2, 9.0]])
    assert_allclose(log_ratios(batch), [[0.1, -0.3], [0.2, 0.0]])
    assert_allclose(sequence_log_ratios(batch), [-0.2, 0.2])
    assert_allclose(sequence_ratios(batch), np.exp([-0.2, 0.2]))
    assert chi_squared(batch) == pytest.approx(np.mean((np.exp([-0.2, 0.2]) - 1) ** 2))
    assert not log_ratios(batch.with_fields(old_logprobs=None)).any()


def test_chi_squared_is_that_of_the_policies():
    scored, sampler = policy_pair()
    rows = np.random.default_rng(0).choice(len(scored.rewards), 200_000, p=sampler.probabilities)
    drawn = off_policy_batch(scored, sampler, rows, np.arange(len(rows)))
    exact = scored.probabilities**2 @ (1 / sampler.probabilities) - 1
    assert exact > 10 * NEGLIGIBLE_CHI_SQUARED
    assert chi_squared(drawn) == pytest.approx(exact, rel=0.03)


def test_rounding_counts_as_no_ratio_and_another_policy_does_not():
    near, far = batch_with([[0.02, 0.01], [-0.03, 0.0]]), batch_with([[0.2, 0.1], [-0.3, 0.0]])
    assert chi_squared(near) < NEGLIGIBLE_CHI_SQUARED < chi_squared(far)
    assert without_negligible_ratios(near).old_logprobs is None
    assert without_negligible_ratios(far) is far
    on_policy = near.with_fields(old_logprobs=None)
    assert without_negligible_ratios(on_policy) is on_policy
    assert chi_squared(on_policy) == 0.0


def test_a_ratio_that_overflows_is_one_sentence():
    with pytest.raises(ValueError, match=r"π/π_old of completion 1 is e\^801, which overflows: old_logprobs must be"):
        sequence_ratios(batch_with([[0.0, 0.0], [801.0, 0.0]]))
    assert chi_squared(batch_with([[0.0, 0.0], [801.0, 0.0]])) == np.inf
    assert_allclose(exponential(np.array([[0.0, -1e9]])), [[1.0, 0.0]])


def test_the_scored_log_probabilities_are_needed():
    batch = Batch([1], [1], ["a"], old_logprobs=[[-1.0]])
    with pytest.raises(ValueError, match="my estimator needs logprobs"):
        log_ratios(batch, "my estimator")
