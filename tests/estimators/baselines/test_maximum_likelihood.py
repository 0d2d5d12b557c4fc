"""MaxRL by hand, and its expected gradient by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose, assert_array_equal

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.baselines.maximum_likelihood import group_mean_scale


def test_max_rl_by_hand():
    batch = Batch([1, 0, 0, 0, 0, 0], [1] * 6, ["a", "a", "a", "a", "b", "b"])
    assert_allclose(est.max_rl().advantages(batch), [3, -1, -1, -1, 0, 0])
    # the mean of the others as baseline, the mean of all as divisor: N/(N−1) times as large
    assert_allclose(est.max_rl(loo=True).advantages(batch), [4, -4 / 3, -4 / 3, -4 / 3, 0, 0])
    assert_array_equal(group_mean_scale(batch), [0.25] * 4 + [np.inf] * 2)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_the_expected_gradient_is_a_truncated_log_likelihood(n: int, p: float):
    # Σ_{k=0}^{N−2} (1−p)^k; for N → ∞ it is 1/p, the derivative of log p
    assert expected_gradient(est.max_rl().weights, p, n) == pytest.approx(sum((1 - p) ** k for k in range(n - 1)))


def test_degenerate_input_is_nan_with_a_reason():
    with pytest.warns(RuntimeWarning, match="use rewards of at least 0"):
        assert np.isnan(est.max_rl().advantages(Batch([1, -1], [1, 1], [0, 0]))).all()
