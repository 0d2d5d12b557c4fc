"""Pass@k training by hand, and its objective by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch


def test_only_the_single_best_counts_in_pass_at_k():
    best = Batch([-3, -1, -2, 1, 1, 0], [1] * 6, ["a"] * 3 + ["b"] * 3)
    assert_allclose(est.pass_at_k().advantages(best), [0, 1, 0, 0, 0, 0])


def test_pass_at_k_divides_the_lead_by_the_standard_deviation():
    batch = Batch([0, 1, 3], [1, 1, 1], ["a", "a", "a"])
    # mean 4/3, squared deviations (16 + 1 + 25)/9
    assert_allclose(est.pass_at_k(normalize=True, eps=0).advantages(batch), [0, 0, 2 / np.sqrt(42 / 9 / 2)])
    assert_allclose(est.pass_at_k(normalize=True, ddof=0, eps=0).advantages(batch), [0, 0, 2 / np.sqrt(42 / 9 / 3)])


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_pass_at_k_follows_the_gradient_of_the_best_reward(n: int, p: float):
    # E[max R] = 1 − (1−p)^N has the derivative N(1−p)^{N−1}, and E[ĝ] is 1/N of it
    assert expected_gradient(est.pass_at_k().weights, p, n) == pytest.approx((1 - p) ** (n - 1))
