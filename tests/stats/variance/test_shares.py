"""The shares of a gradient that sets of completions make up."""

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.analyses import variance_by_length
from gradstats.analyses.length_bins import _OfLengths
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.shares import ShareOfSum, bin_of, binned, equal_count_bins, inside_bins

VALUES = np.array([0.5, 0.1, 0.9, 0.5, 0.2, 0.7, 0.5, 0.5])


def test_equal_counts_with_ties_make_fewer_bins():
    np.testing.assert_allclose(equal_count_bins(VALUES, 2), [[0.1, 0.2], [0.5, 0.9]])
    np.testing.assert_allclose(equal_count_bins(VALUES, 4), [[0.1, 0.2], [0.5, 0.5], [0.7, 0.9]])
    np.testing.assert_allclose(equal_count_bins(VALUES, 1), [[0.1, 0.9]])
    lengths = np.arange(1, 101)
    bins = equal_count_bins(lengths, 4)
    assert bins.tolist() == [[1, 25], [26, 50], [51, 75], [76, 100]]
    assert bins.dtype == lengths.dtype
    inside = inside_bins(lengths, bins)
    assert [int(one.sum()) for one in inside] == [25] * 4
    np.testing.assert_array_equal(np.stack(inside)[bin_of(lengths, 4), np.arange(len(lengths))], True)


def test_each_value_lies_in_one_bin():
    for bins in (1, 3, 8, [0.0, 0.5, 1.0], (0.1, 0.9)):
        ends, inside = binned(VALUES, bins)
        np.testing.assert_array_equal(np.sum(inside, axis=0), 1)
        for (low, high), one in zip(ends, inside, strict=True):
            assert ((low <= VALUES[one]) & (VALUES[one] <= high)).all()
    # A bin holds its lower edge, and the last one its upper.
    ends, inside = binned(VALUES, [0.1, 0.5, 0.9])
    assert (ends.tolist(), [int(one.sum()) for one in inside]) == ([[0.1, 0.5], [0.5, 0.9]], [2, 6])


def test_unusable_bins_are_refused():
    with pytest.raises(ValueError, match="bins=0 must be at least 1"):
        binned(VALUES, 0)
    for edges in ([0.5], [0.5, 0.5], [1.0, 0.0]):
        with pytest.raises(ValueError, match="at least two ascending edges"):
            binned(VALUES, edges)
    with pytest.raises(ValueError, match="leaves 1 values outside, such as 0.9: widen them"):
        binned(VALUES, [0.0, 0.8])


def test_shares_by_length_are_the_exact_ones():
    """The mean over tokens moves the gradient towards short completions."""
    policy = EnumeratedPolicy(3, 4, n_prompts=2, rng=3)
    batch, scores, _ = policy.sample(3000, 3, rng=0)
    labels = ["rloo", "recipe:grpo(scale=none)"]
    lowest = {}
    found = variance_by_length(batch, labels, scores, n_bins=20).to_frame(0.999)
    assert list(found["estimator"].unique()) == labels
    for label, frame in found.groupby("estimator"):
        whole = policy.moments(est.get(label), 3)
        for row in frame.to_dict("records"):
            low, high = float(row["length_low"]), float(row["length_high"])
            part, rest = (
                policy.moments(_OfLengths(est.get(label), *ends), 3) for ends in ((low, high), (high + 1, 99.0))
            )
            along = part.mean @ whole.mean
            assert row["share_of_gradient_low"] < along / whole.signal_sq < row["share_of_gradient_high"]
            if low == 1:  # the rest is then one range as well
                lowest[label] = row["share_of_gradient"]
                squares = [one.trace_cov + one.signal_sq for one in (part, whole, rest)]
                covariance = (squares[0] + squares[1] - squares[2]) / 2 - along
                exact = covariance / whole.trace_cov
                assert row["share_of_variance_low"] < exact < row["share_of_variance_high"]
                assert abs(row["share_of_variance"] - row["ratio"]) > 0.005  # bins of one group covary
        assert frame["share_of_gradient"].sum() == pytest.approx(1.0)
        assert frame["share_of_variance"].sum() == pytest.approx(1.0)
    assert lowest["recipe:grpo(scale=none)"] > lowest["rloo"]


def test_a_set_of_all_and_a_set_without_weights_are_known_exactly():
    rng = np.random.default_rng(0)
    batch = Batch((rng.random(80) < 0.5).astype(float), rng.integers(5, 50, 80), np.arange(80) // 4)
    scores = rng.normal(size=(80, 3)) + 4.0 * batch.rewards[:, None]
    (whole,) = variance_by_length(batch, "rloo", scores, n_bins=1).to_frame().to_dict("records")
    for name in ("share_of_gradient", "share_of_variance"):
        assert [whole[name], whole[f"{name}_low"], whole[f"{name}_high"]] == [1.0, 1.0, 1.0]
    cut = batch.with_fields(truncated=batch.lengths > 25)
    frame = variance_by_length(cut, "recipe:rloo(filter=mask_truncated)", scores, n_bins=4).to_frame()
    last = frame.iloc[3]
    assert [last[f"share_of_gradient{end}"] for end in ("", "_low", "_high")] == [0.0, 0.0, 0.0]
    assert last[["share_of_variance", "scale", "kept_share"]].tolist() == [0.0, 0.0, 0.0]


def test_the_interval_of_a_share_lies_between_0_and_1():
    share = ShareOfSum(0.2, Estimate(0.25, 0.5, "log", 30.0))
    value, low, high = share.with_interval(0.95)
    odds_low, odds_high = share.odds.confidence_interval(0.95)
    assert (value, low, high) == pytest.approx((0.2, odds_low / (1 + odds_low), odds_high / (1 + odds_high)))
    assert 0 < low < value < high < 1
    assert ShareOfSum(0.2, Estimate(0.25, 800.0, "log", 3.0)).with_interval(0.999)[2] == 1.0
