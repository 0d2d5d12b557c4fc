"""The shares of a gradient that sets of completions make up."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import variance_by_length, variances_by_length
from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.length_bins import _OfLengths
from gradstats.stats.variance.shares import ShareOfSum


def test_shares_by_length_are_the_exact_ones():
    """The mean over tokens moves the gradient towards short completions."""
    policy = EnumeratedPolicy(3, 4, n_prompts=2, rng=3)
    batch, scores, _ = policy.sample(6000, 3, rng=0)
    labels = ["rloo", "recipe:grpo(scale=none)"]
    lowest = {}
    for label, found in zip(labels, variances_by_length(batch, labels, scores, n_bins=20), strict=True):
        frame = found.to_frame(0.999)
        assert found.estimator == label
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
    assert last["share_of_variance"] == 0.0


def test_the_interval_of_a_share_lies_between_0_and_1():
    share = ShareOfSum(0.2, Estimate(0.25, 0.5, "log", 30.0))
    value, low, high = share.with_interval(0.95)
    odds_low, odds_high = share.odds.confidence_interval(0.95)
    assert (value, low, high) == pytest.approx((0.2, odds_low / (1 + odds_low), odds_high / (1 + odds_high)))
    assert 0 < low < value < high < 1
    assert ShareOfSum(0.2, Estimate(0.25, 800.0, "log", 3.0)).with_interval(0.999)[2] == 1.0
