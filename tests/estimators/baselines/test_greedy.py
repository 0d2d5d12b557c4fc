"""ReMax by hand."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch


def test_remax_subtracts_the_greedy_reward_from_the_return():
    batch = Batch([1, 0], [2, 1], ["a", "a"], greedy_rewards=[1, 0.5])
    assert_allclose(est.remax().advantages(batch), [[0, 0], [-0.5, 0]])
    dense = batch.with_fields(token_rewards=np.array([[0.25, 0.75], [2.0, 0.0]]))
    assert_allclose(est.remax().advantages(dense), [[1 - 1, 0.75 - 1], [2 - 0.5, 0]])


def test_remax_is_unbiased():
    def weights(batch: Batch) -> np.ndarray:
        greedy = np.ones(len(batch.rewards))
        return est.remax().weights(batch.with_fields(greedy_rewards=greedy))[:, 0]

    assert expected_gradient(weights, 0.3, 3) == pytest.approx(1.0)
