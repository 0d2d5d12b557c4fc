"""The scale-free share of bias, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import matched_bias_share

RNG = np.random.default_rng(0)
TARGET = RNG.normal(size=(30, 3)) + np.array([3.0, 1.0, 0.0])


def pairs_mean(first: np.ndarray, second: np.ndarray) -> float:
    """The mean of ⟨a_m, b_m'⟩ over m ≠ m', by a loop."""
    m = len(first)
    return sum(float(first[i] @ second[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))


def turned(gradients: np.ndarray, target: np.ndarray) -> float:
    """‖E g‖²‖G‖² − ⟨E g, G⟩², 0 where they point the same way."""
    cross = pairs_mean(gradients, target)
    return pairs_mean(gradients, gradients) * pairs_mean(target, target) - cross**2


@pytest.mark.parametrize("size", [1, 10, 128])
def test_against_loops(size: int):
    gradients = 0.3 * TARGET + 0.2 * RNG.normal(size=(30, 3)) + np.array([0.0, 0.0, 0.8])
    statistics = statistics_of(gradients[:, None], target=TARGET[:, None], prompts_per_batch=size)
    value, low, high = matched_bias_share(statistics).with_interval(0.95)
    kept = [np.flatnonzero(np.arange(30) - m) for m in range(30)]
    replicates = [turned(gradients[rows], TARGET[rows]) for rows in kept]
    bias_sq = 30 * turned(gradients, TARGET) - 29 * np.mean(replicates)
    signal, target_sq = pairs_mean(gradients, gradients), pairs_mean(TARGET, TARGET)
    trace_cov = float(np.mean(np.sum(gradients**2, axis=1))) - signal
    assert value == pytest.approx(bias_sq / (bias_sq + trace_cov * target_sq / size), rel=1e-9)
    assert 0 <= low <= value <= high <= 1


def test_scale_does_not_enter():
    gradients = TARGET + np.array([0.0, 0.0, 1.0]) + RNG.normal(size=(30, 3))
    one, other = (
        matched_bias_share(statistics_of(scale * gradients[:, None], target=TARGET[:, None])).with_interval(0.9)
        for scale in (1.0, 0.01)
    )
    assert one == pytest.approx(other, rel=1e-9)
    assert one[0] > 0.1


def test_a_multiple_of_the_target_has_none():
    for known in (None, 0.125):
        statistics = statistics_of(0.125 * TARGET[:, None], target=TARGET[:, None], scale=known)
        assert matched_bias_share(statistics).with_interval(0.95) == pytest.approx((0, 0, 0), abs=1e-12)


def test_rounding_is_not_shown_as_bias():
    """A multiple whose factor is not a power of two: rounding would otherwise be printed, outside its interval even."""
    for known in (None, 0.7):
        statistics = statistics_of(0.7 * TARGET[:, None], target=TARGET[:, None], scale=known)
        assert matched_bias_share(statistics).with_interval(0.95) == (0.0, 0.0, 0.0)


def test_a_known_scale_needs_no_resolved_target():
    noise = RNG.normal(size=(30, 3))
    unresolved = statistics_of(noise[:, None] + 0.1, target=noise[:, None])
    value, low, high = matched_bias_share(unresolved).with_interval(0.95)
    assert np.isnan(value)
    assert (low, high) == (0.0, 1.0)
    known = statistics_of(noise[:, None] + 0.1, target=noise[:, None], scale=1.0)
    value, low, high = matched_bias_share(known).with_interval(0.95)
    assert low <= value <= high
    # With c = 1 it is the share of bias itself: a constant difference of (0.1, 0.1, 0.1).
    trace_cov = float(np.mean(np.sum((noise + 0.1) ** 2, axis=1))) - pairs_mean(noise + 0.1, noise + 0.1)
    assert value == pytest.approx(0.03 / (0.03 + trace_cov / 10), rel=1e-9)


def test_one_dimension_has_no_direction():
    """What the estimated scale brings there is bias alone, which is taken off to the next order in 1/M."""
    rng = np.random.default_rng(1)
    target = 5.0 + rng.normal(size=60)
    statistics = statistics_of(along(*(target + 2.0)), target=along(*target), prompts_per_batch=1)
    plain = (statistics.signal - statistics.target.cross * statistics.target.cross / statistics.target.signal).value
    value, low, _ = matched_bias_share(statistics).with_interval(0.95)
    assert abs(value) < 0.1 * abs(plain / statistics.trace_cov.value)
    assert low == 0.0


def test_without_a_target_it_is_not_known():
    assert np.isnan(matched_bias_share(statistics_of(TARGET[:, None])).with_interval(0.95)).all()
