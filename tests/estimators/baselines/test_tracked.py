"""Baselines from earlier rewards of the prompt, and quantiles: their exact expectations."""

from types import SimpleNamespace

import numpy as np
import pytest
from estimator_batches import expected_gradient
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.rollouts.table import Rollouts


def with_history(batch: Batch) -> Batch:
    return batch.with_fields(columns={"history": np.fromiter(([1.0, 0.0, 0.5] for _ in batch.rewards), dtype=object)})


def exact(label: str, group_size: int, p: float = 0.3) -> float:
    """E[ĝ] over ∇J, after three earlier rewards."""
    return expected_gradient(lambda batch: est.get(label).weights(with_history(batch)), p, group_size)


@pytest.mark.parametrize(
    "label", ["reward_ema", "reward_ema(decay=0.5, loo=True)", "beta_tracker", "quantile(loo=True)"]
)
def test_the_expected_gradient_is_the_stated_multiple(label: str):
    for group_size in (1, 3):
        assert exact(label, group_size) == pytest.approx(est.get(label).expected_scale(group_size), abs=1e-12)


def test_an_own_median_rescales_prompts_by_their_success():
    """Of three, a success counts while both others fail, and a failure while both succeed: (1 − p)² + p²."""
    for p in (0.2, 0.5, 0.8):
        assert exact("quantile", 3, p) == pytest.approx((1 - p) ** 2 + p**2)


def test_a_filter_over_the_group_weights_completions_by_their_place():
    batch = Batch([1, 0, 1, 0, 1, 0, 1, 0], [1] * 8, ["a"] * 8)
    variance, left, factors = 1.0, [], []
    for _ in range(8):
        predicted = variance + 1e-5
        variance = predicted * 1e-2 / (predicted + 1e-2)
        left.append(1e-2 / (predicted + 1e-2))
        factors.append(left[-1] / (np.sqrt(variance) + 1e-8))
    assert_allclose([factors[0], factors[1], factors[7]], [0.0995, 7.1, 24.7], rtol=1e-2)
    assert_allclose(est.kalman().advantages(batch), est.kalman(loo=True).advantages(batch) * left)
    for group_size in (1, 3):
        without_history = expected_gradient(est.kalman().weights, 0.3, group_size)
        assert without_history == pytest.approx(np.mean(factors[:group_size]), rel=1e-12)
    assert exact("kalman", 1) == pytest.approx(factors[3], rel=1e-12)  # three were filtered before


def test_the_history_is_a_column_of_the_rollouts():
    rollouts = Rollouts.from_sequences([[1]] * 3, [[1, 2], [3], [1, 2]], [1.0, 0.0, 1.0], ["p", "p", "q"])
    frame = rollouts.frame.assign(history=[[1.0, 0.0, 1.0], [1.0, 0.0, 1.0], []])
    batch = Batch.from_measurement(SimpleNamespace(rollouts=Rollouts(frame)))
    assert_allclose(est.get("beta_tracker(decay=1, count=1)").advantages(batch), [1 - 2.5 / 4, -2.5 / 4, 0.5])
    with pytest.raises(ValueError, match="reward_ema needs column:history.*a column 'history'"):
        est.reward_ema().advantages(Batch([1, 0], [1, 1], ["a", "a"]))
