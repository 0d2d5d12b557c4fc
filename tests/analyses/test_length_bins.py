"""An estimator's gradient split by completion length."""

from __future__ import annotations

import numpy as np
import pytest
from off_policy import ImportanceWeighted, turned_policy

from gradstats import estimators as est
from gradstats.analyses import registry, variance_by_length
from gradstats.analyses.length_bins import _OfLengths
from gradstats.analyses.variance import compare
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import short_table


def ragged_batch(n_prompts=60, per_prompt=4, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    lengths = rng.integers(5, 200, n)
    batch = Batch((rng.random(n) < 0.5).astype(float), lengths, np.arange(n) // per_prompt)
    return batch, rng.standard_normal((n, dim)) * lengths[:, None] ** 0.5 + 9.0 * batch.rewards[:, None]


def test_each_bin_is_the_sum_over_its_own_completions():
    batch, scores = ragged_batch()
    found = variance_by_length(batch, "rloo", scores, n_bins=3)
    frame = found.to_frame()
    assert frame["n_completions"].sum() == len(scores)
    assert list(frame["length_low"][1:]) > list(frame["length_high"][:-1])
    weights = est.rloo().weights(batch)
    m = 60
    for row in frame.to_dict("records"):
        inside = (batch.lengths >= row["length_low"]) & (batch.lengths <= row["length_high"])
        gradients = np.array([(weights * inside)[batch.groups == k] @ scores[batch.groups == k] for k in range(m)])
        signal = (np.sum(gradients.sum(axis=0) ** 2) - np.sum(gradients**2)) / (m * (m - 1))
        assert row["signal_sq"] == pytest.approx(signal, rel=1e-10)
        assert row["trace_cov"] == pytest.approx(np.sum(gradients**2) / m - signal, rel=1e-10)
    whole = compare(batch, ["rloo"], scores).to_frame()["trace_cov"][0]
    np.testing.assert_allclose(frame["ratio"], frame["trace_cov"] / whole, rtol=1e-10)
    low, high = found.confidence_interval(0.9, "trace_cov")
    assert np.all((low < frame["trace_cov"]) & (frame["trace_cov"] < high))


def test_the_mean_over_tokens_gives_each_length_its_share():
    """E[g] of completions of length T is (N−1)/(N·T) of theirs under RLOO."""
    policy = EnumeratedPolicy(3, 4, n_prompts=2, rng=3)
    batch, scores, _ = policy.sample(4000, 3, rng=0)
    frame = variance_by_length(batch, "recipe:grpo(scale=none)", scores, n_bins=20).to_frame(0.999)
    assert frame["length_low"].tolist() == frame["length_high"].tolist() == [1, 2, 3, 4]
    for column in ("scale", "scale_low", "scale_high"):  # weights that are proportional leave no error
        np.testing.assert_allclose(frame[column], 2 / 3 / frame["length_low"], rtol=1e-9)
    unbiased = variance_by_length(batch, "rloo", scores, n_bins=20).to_frame()
    assert unbiased[["scale", "scale_low", "scale_high", "cosine"]].to_numpy() == pytest.approx(1.0)
    assert unbiased["matched_ratio"].isna().all()


def test_off_policy_the_bins_are_judged_against_the_weighted_gradient():
    policy = turned_policy()
    batch, scores, _ = policy.sample(4000, 3, rng=0)
    found = variance_by_length(batch, "rloo", scores, n_bins=2)
    frame = found.to_frame(0.999)
    assert set(frame["target"]) == {"importance"}
    assert "importance-weighted gradient" in found.comparison.notes[0]
    for row in frame.to_dict("records"):
        mine, theirs = (
            policy.moments(_OfLengths(one, float(row["length_low"]), float(row["length_high"])), 3).mean
            for one in (est.rloo(), ImportanceWeighted())
        )
        assert row["scale_low"] < mine @ theirs / (theirs @ theirs) < row["scale_high"]
        cosine = mine @ theirs / np.linalg.norm(mine) / np.linalg.norm(theirs)
        assert row["cosine_low"] <= cosine <= row["cosine_high"]
    assert not (frame["scale_low"] < 1).all() or not (frame["scale_high"] > 1).all()
    asked = variance_by_length(batch, "rloo", scores, n_bins=2, target="on_policy").to_frame()
    assert asked["scale"].tolist() == [1.0, 1.0]


def test_the_sentence_the_figure_and_the_first_rows_are_those_of_the_reference():
    batch, scores = ragged_batch()
    labels = ["rloo", "recipe:grpo"]
    found = variance_by_length(batch, labels, scores, n_bins=2, reference="recipe:grpo")
    assert " of the variance of recipe:grpo" in found.sentence()
    assert found.sentence() == variance_by_length(batch, "recipe:grpo", scores, n_bins=2).sentence()
    analysis, frame = registry.get("length_bins"), found.to_frame()
    assert set(analysis.figures[0].rows(frame)["estimator"]) == {"recipe:grpo"}
    assert short_table(analysis, frame).rows[0].names == ("recipe:grpo",)
    other = variance_by_length(batch, labels, scores, n_bins=2, reference="reinforce")  # which is not among them
    assert " of the variance of rloo" in other.sentence()


def test_the_sentence_names_the_lengths_with_most_of_the_variance():
    batch, scores = ragged_batch()
    found = variance_by_length(batch, "rloo", scores, n_bins=3)
    most = found.to_frame().sort_values("share_of_variance").iloc[-1]
    variance, gradient = (
        "{:.0f}% [{:.0f}, {:.0f}]".format(*(100 * most[f"share_of_{of}{end}"] for end in ("", "_low", "_high")))
        for of in ("variance", "gradient")
    )
    lengths = f"{most['n_completions'] / 240:.0%} of completions with {most['length_low']}–{most['length_high']} tokens"
    assert found.sentence().startswith(f"The {lengths} make up {variance} of the variance of rloo")
    assert found.sentence().endswith(f" and {gradient} of its gradient.")
    flat = variance_by_length(batch, "rloo", 0.0 * scores + 1e-9 * np.eye(3)[batch.groups % 3], n_bins=3)
    assert "of its gradient" not in flat.sentence()  # its share is not resolved


def test_what_cannot_be_split_is_refused_or_says_why():
    batch, scores = ragged_batch()
    with pytest.raises(ValueError, match="batch_mean is a batch-level estimator: choose a group-level one"):
        variance_by_length(batch, "batch_mean", scores)
    with pytest.raises(ValueError, match="n_bins=0 must be at least 1"):
        variance_by_length(batch, "rloo", scores, n_bins=0)
    found = variance_by_length(batch.with_fields(rewards=np.zeros(len(scores))), "recipe:grpo", scores)
    assert found.notes == (
        "every reward equals 0 (choose problems that are solved sometimes, not always), so recipe:grpo gives every "
        "completion weight 0 and its rows are NaN",
    )
