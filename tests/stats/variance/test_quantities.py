"""The table of quantities is complete, and the rows and columns of a comparison follow it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats.estimators import Batch
from gradstats.stats import compare
from gradstats.stats.variance.quantities import (
    COMPARED,
    JUDGED,
    QUANTITIES,
    VARIANCE_COMPONENTS,
    axis_label,
    filled_in,
    shown_in,
)


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=64) + 1.0, np.full(64, 10), np.repeat(np.arange(16), 4))
    scores = rng.normal(size=(64, 3)) + 0.5 * batch.rewards[:, None] ** 2
    return quiet_compare(batch, ["rloo", "reinforce"], scores, group_size=2)


def test_the_frame_holds_every_quantity_in_order_with_its_interval(comparison):
    ends = ("", "_low", "_high")
    expected = ["estimator", "group_size", "unit", "components", "target"]
    expected += [f"{one.name}{end}" for one in COMPARED for end in ends]
    beside = [f"{name}_simultaneous_{end}" for name in ("ratio", "matched_ratio") for end in ("low", "high")]
    beside += ["in_best_set", "n_effective_prompts", "most_influential_prompt"]
    assert list(comparison.to_frame().columns) == expected + beside
    components = comparison.variance_components()
    assert {f"{one.name}{end}" for one in VARIANCE_COMPONENTS for end in ends} <= set(components.columns)


def test_labels_are_filled_in_with_reference_and_target():
    for quantity in QUANTITIES.values():
        for text in (quantity.heading, quantity.axis_label, quantity.panel_label):
            assert "{" not in filled_in(text, {"reference": "rloo", "target": "importance"})
    label = QUANTITIES["cosine"].axis_label
    assert filled_in(label, {"target": "importance"}) == "cosine to the importance-weighted gradient"
    assert filled_in(label, {}) == "cosine to the on-policy gradient"  # a frame of an earlier version


def test_the_axis_states_a_metric_that_is_not_euclidean(comparison):
    attrs = comparison.to_frame().attrs
    assert attrs["metric"] == "euclidean"
    assert "metric" not in axis_label(QUANTITIES["trace_cov"], attrs)
    label = axis_label(QUANTITIES["ratio"], attrs | {"metric": "adam(eps=1e-08, power=0.5, moments=1a)"})
    assert label == "variance relative to rloo\n(Adam's metric)"


def test_what_decides_has_no_unit():
    assert not JUDGED.has_unit
    assert {one.name for one in QUANTITIES.values() if one.has_unit} == {
        "trace_cov", "signal_sq", "ratio", "within_prompt", "between_prompt",
    }  # fmt: skip


def test_what_is_shown_where():
    assert shown_in("terminal") == ("trace_cov", "ratio", "matched_ratio", "cosine", "matched_bias_share")
    assert shown_in("panels") == ("matched_ratio", "cosine", "matched_bias_share")
    assert set(shown_in("page")) - set(shown_in("paper")) == {"noise_to_signal"}


def test_a_comparison_is_pickled(comparison):
    again = pickle.loads(pickle.dumps(comparison))
    assert again.to_frame().equals(comparison.to_frame())


def test_resolved_signal_is_given_in_full():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    frame = compare(batch, ["rloo", "grpo"], scores).to_frame()
    names = [one.name for one in COMPARED]
    assert frame[[f"{name}{end}" for name in names for end in ("", "_low", "_high")]].notna().all().all()
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
