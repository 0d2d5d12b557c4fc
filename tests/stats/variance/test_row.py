"""Which quantities of a row are resolved, and their intervals."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats.estimators import Batch
from gradstats.stats import compare

QUANTITIES = ("trace_cov", "signal_sq", "noise_to_signal", "ratio", "matched_ratio", "cosine", "bias_share")


def test_resolved_signal_is_given_in_full():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    frame = compare(batch, ["rloo", "grpo"], scores).to_frame()
    assert frame[[f"{q}{e}" for q in QUANTITIES for e in ("", "_low", "_high")]].notna().all().all()
    assert (frame["noise_to_signal_low"] < frame["noise_to_signal"]).all()
    assert frame["cosine"].iloc[0] == pytest.approx(1.0)


def test_intervals_widen_with_the_level():
    batch, scores = interleaved_batch([4] * 30)
    result = quiet_compare(batch, ["rloo", "reinforce"], scores)
    narrow, wide = result.confidence_interval(0.5), result.confidence_interval(0.99)
    assert (wide[0] < narrow[0]).all()
    assert (narrow[1] < wide[1]).all()
    low, high = result.confidence_interval(0.9, "ratio")
    np.testing.assert_array_equal(low, result.to_frame(0.9)["ratio_low"])
    np.testing.assert_array_equal(high, result.to_frame(0.9)["ratio_high"])


def test_kept_share_counts_groups_with_a_gradient():
    rewards = np.array([1, 1, 0, 1, 0, 0, 1, 0], dtype=float)
    batch = Batch(rewards, np.arange(1, 9), np.repeat(["a", "b", "c", "d"], 2))
    frame = quiet_compare(batch, ["rloo", "constant(b=0.5)"], np.random.default_rng(0).normal(size=(8, 3))).to_frame()
    assert list(frame["kept_share"]) == [0.5, 1.0]
    assert (frame["kept_share_low"] > 0).all()
    assert (frame["kept_share_high"] <= 1).all()
    assert frame["kept_share_low"].iloc[1] < 1
