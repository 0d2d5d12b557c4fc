"""What bias and cosine are judged against, on-policy and off."""

import warnings
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.stats import compare
from gradstats.stats.variance import comparison as prepared_inputs
from gradstats.stats.variance.inputs import choose_target, recorded_differences
from tests.off_policy import TOKEN_RATIOS, ImportanceWeighted, turned_policy

POLICY = turned_policy()
BATCH, SCORES, TOKEN_SCORES = POLICY.sample(4000, 3, rng=5)


def test_a_biased_estimator_is_judged_against_rloo_whatever_the_reference():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    by_reference = [
        quiet_compare(batch, ["rloo", "grpo"], scores, reference=name).to_frame() for name in ("rloo", "grpo")
    ]
    for frame in by_reference:
        assert frame["cosine"].iloc[0] == pytest.approx(1.0)
        assert frame["bias_share"].iloc[0] == 0.0
        assert frame["bias_share"].iloc[1] > 0.1
    np.testing.assert_allclose(by_reference[0]["cosine"], by_reference[1]["cosine"], rtol=1e-12)


def test_single_completions_are_judged_against_reinforce():
    batch, scores = interleaved_batch([1] * 60, signal=3.0)
    frame = quiet_compare(batch, ["reinforce"], scores, reference="reinforce").to_frame()
    assert frame["bias_share"].tolist() == [0.0]
    assert frame["cosine"].iloc[0] == pytest.approx(1.0)


def test_off_policy_the_ranking_is_that_of_the_scored_policy():
    comparison = quiet_compare(BATCH, ["rloo", TOKEN_RATIOS, ImportanceWeighted()], TOKEN_SCORES)
    frame = comparison.to_frame(0.999).set_index("estimator")  # nine intervals are to hold at once
    assert set(frame["target"]) == {"importance"}
    for estimator in (est.rloo(), TOKEN_RATIOS, ImportanceWeighted()):
        exact, row = POLICY.moments(estimator, 3), frame.loc[estimator.label]
        assert row["cosine_low"] <= exact.cosine + 1e-9
        assert row["cosine_high"] >= exact.cosine - 1e-9
        assert row["cosine"] == pytest.approx(exact.cosine, abs=0.08)
        assert row["matched_bias_share_low"] <= exact.matched_bias_share(128) + 1e-9
        assert row["matched_bias_share_high"] >= exact.matched_bias_share(128) - 1e-9
        assert row["trace_cov_low"] < exact.trace_cov < row["trace_cov_high"]
    assert frame.loc["rloo", "cosine"] < 0.75 < 0.95 < frame.loc[TOKEN_RATIOS.label, "cosine"]
    assert frame.loc["rloo", "matched_bias_share"] > 0.5 > frame.loc[TOKEN_RATIOS.label, "matched_bias_share"]


def test_judged_on_policy_the_ranking_turns_round():
    frame = quiet_compare(BATCH, ["rloo", TOKEN_RATIOS], TOKEN_SCORES, target="on_policy").to_frame()
    assert frame["cosine"].iloc[0] == pytest.approx(1)
    assert frame["cosine"].iloc[1] < 0.8
    assert frame["matched_bias_share"].iloc[0] == pytest.approx(0, abs=1e-12)
    assert "judged against rloo as asked for, although χ² of whole completions is 0.15" in frame.attrs["notes"][0]


@pytest.mark.parametrize("asked", ["importance", "auto"])
def test_small_ratios_count_where_the_target_is_weighted_by_them(asked):
    """At χ² = 0.005 rloo is biased by little, not by exactly 0; recorded settings decide under auto."""
    policy = turned_policy(0.037)
    assert 0.004 < policy.chi_squared < 0.006
    batch, scores, _ = policy.sample(4000, 3, rng=5)
    differences = ["temperature=0.9"] if asked == "auto" else []
    with mock.patch.object(prepared_inputs, "recorded_differences", return_value=differences):
        frame = quiet_compare(batch, ["rloo", "recipe:rloo_is"], scores, target=asked).to_frame(0.999)
    assert frame.attrs["target"] == "importance"
    plain, weighted = frame.iloc[0], frame.iloc[1]
    exact = policy.moments(est.rloo(), 3)
    assert plain["cosine_low"] < exact.cosine < plain["cosine_high"]
    assert plain["cosine"] < 0.999
    assert plain["matched_bias_share"] > 0
    assert weighted["cosine"] == pytest.approx(1)
    assert weighted["trace_cov"] != pytest.approx(plain["trace_cov"], rel=1e-4)


def test_the_target_itself_has_cosine_one_and_no_bias():
    row = quiet_compare(BATCH, [ImportanceWeighted()], SCORES).to_frame().iloc[0]
    assert [row[f"cosine{end}"] for end in ("", "_low", "_high")] == pytest.approx([1, 1, 1])
    assert [row[f"matched_bias_share{end}"] for end in ("", "_low", "_high")] == pytest.approx([0, 0, 0], abs=1e-9)


def test_the_frame_says_what_it_was_judged_against():
    frame = quiet_compare(BATCH, ["rloo"], SCORES).to_frame(0.9)
    size, low, high = (frame.attrs[f"effective_sample_size{end}"] for end in ("", "_low", "_high"))
    assert frame.attrs["target"] == "importance"
    assert low < size < high
    assert size == pytest.approx(12000 / (1 + POLICY.chi_squared), rel=0.02)
    assert any(
        "importance-weighted gradient of the scored policy (rloo_is), since χ²" in n for n in frame.attrs["notes"]
    )
    unknown = quiet_compare(BATCH.with_fields(old_logprobs=None), ["rloo"], SCORES).to_frame()
    assert unknown.attrs["target"] == "on_policy"
    assert np.isnan(unknown.attrs["effective_sample_size"])


def test_a_known_scale_is_not_used_off_policy():
    comparison = quiet_compare(BATCH, ["reinforce", "group_mean"], SCORES)
    # One number times the weights of the reference is known whatever was drawn.
    assert [row.known_coefficient for row in comparison.rows] == [None, pytest.approx(2 / 3)]
    on_policy = quiet_compare(BATCH.with_fields(old_logprobs=None), ["reinforce", "group_mean"], SCORES)
    assert [row.known_coefficient for row in on_policy.rows] == [1.0, pytest.approx(2 / 3)]


def test_with_drift_the_matched_ratio_covers_what_enumeration_gives():
    """Taking both estimators as unbiased would report the plain ratio, 1.54, where 0.475 is true."""
    exact = {name: POLICY.moments(est.get(name), 3) for name in ("rloo", "reinforce")}
    plain = exact["reinforce"].trace_cov / exact["rloo"].trace_cov
    truth = exact["reinforce"].matched_trace_cov / exact["rloo"].matched_trace_cov
    row = quiet_compare(BATCH, ["reinforce"], SCORES).to_frame(0.999).iloc[0]
    assert row["matched_ratio_low"] < truth < row["matched_ratio_high"] < 1 < row["ratio_low"] < plain
    known = quiet_compare(BATCH.with_fields(old_logprobs=None), ["reinforce"], SCORES).to_frame(0.999).iloc[0]
    assert known["matched_ratio_low"] > 2 * truth


def singletons_and_fours(seed=0):
    """150 groups of one completion and 150 of four, with scores of mean 0 that point along the reward."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(300), [1] * 150 + [4] * 150)
    rewards = (rng.random(750) < 0.5).astype(float)
    scores = rng.normal(size=(750, 4)) + 3.0 * (rewards - 0.5)[:, None] * np.eye(4)[0]
    return Batch(rewards, rng.integers(3, 60, 750), groups), scores


def test_among_uneven_groups_with_singletons_the_target_is_unbiased():
    """`rloo` alone is 0 where there is nobody to compare with, and would give unbiased REINFORCE a share of 0.9."""
    batch, scores = singletons_and_fours()
    comparison = quiet_compare(batch, ["reinforce", "rloo"], scores)
    frame = comparison.to_frame().set_index("estimator")
    assert frame.loc["reinforce", "bias_share_low"] <= 0 < frame.loc["reinforce", "bias_share_high"] < 0.2
    assert frame.loc["rloo", "bias_share_low"] > 0.9  # half of the gradient is missing
    assert any("judged against rloo(singleton=reward)" in note for note in comparison.notes)


def slightly_off(chi_squared: float):
    rng = np.random.default_rng(0)
    noise = np.where(BATCH.mask, rng.normal(size=BATCH.mask.shape), 0.0)
    each = np.sqrt(chi_squared / BATCH.lengths.mean())
    return BATCH.with_fields(old_logprobs=BATCH.logprobs + each * noise)


def test_rounding_stays_on_policy_with_a_bound():
    choice = choose_target("auto", slightly_off(1e-4))
    assert choice.kind == "on_policy"
    assert choice.agree
    assert choice.remark is not None
    assert "at most 0.01 times the root mean square gradient" in choice.remark
    assert choose_target("auto", slightly_off(0.04)).kind == "importance"


def test_recorded_settings_decide_as_well():
    choice = choose_target("auto", slightly_off(1e-4), ["temperature=0.9"])
    assert choice.kind == "importance"
    assert choice.missing is None
    assert choice.remark is not None
    assert "since the sampler's settings differ (temperature=0.9)" in choice.remark


@pytest.mark.parametrize(
    ("batch", "differences", "match"),
    [
        (BATCH, ["top_p=0.95"], r"cut off part of the distribution \(top_p=0\.95\).*draw with top_p=1"),
        (BATCH.with_fields(old_logprobs=None), ["temperature=0.6"], "log-probabilities are not known"),
        (BATCH.select(np.arange(30)), [], r"effective sample size is 2\d\.\d of 30 completions, and at least 50"),
        (BATCH.with_fields(old_logprobs=BATCH.logprobs - 800.0), [], "ratios of whole completions overflow"),
    ],
)
def test_where_nothing_can_be_judged(batch, differences, match):
    choice = choose_target("auto", batch, differences)
    assert choice.kind == "importance"
    assert choice.missing is not None
    with pytest.raises(AssertionError, match=match):
        raise AssertionError(choice.missing)


def test_what_cannot_be_judged_is_nan_and_the_variance_stays():
    few = np.arange(45)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = compare(BATCH.select(few), ["rloo", "grpo"], SCORES[few]).to_frame()
    assert "the effective sample size is" in str(caught[0].message)
    assert (
        frame[["cosine", "cosine_low", "bias_share", "matched_bias_share", "matched_bias_share_high"]]
        .isna()
        .all(axis=None)
    )
    assert np.isfinite(frame[["trace_cov", "ratio"]]).all(axis=None)


def test_what_is_recorded_of_sampler_and_scorer():
    def measured(sampler, policy, scorer):
        rollouts = SimpleNamespace(metadata={"sampler": sampler, "policy": policy}, frame=None, rewards=None,
                                   prompt_id=None, masks=None, tokens=None, sample_id=None, lengths=None,
                                   truncated=None)  # fmt: skip
        return SimpleNamespace(rollouts=rollouts, metadata={"policy": scorer})

    scorer = {"temperature": 1.0, "revision": "step-2", "adapter": None}
    same = measured({"temperature": 1.0, "top_p": 1.0}, {"revision": "step-2", "adapter": None}, scorer)
    assert recorded_differences(same) == []
    other = measured({"temperature": 0.6, "min_p": 0.1}, {"revision": "step-1", "adapter": None}, scorer)
    assert set(recorded_differences(other)) == {"temperature=0.6", "min_p=0.1", "revision=step-1"}
    assert recorded_differences(BATCH) == []


def test_what_is_refused():
    with pytest.raises(ValueError, match="target='importance' needs the log-probabilities of sampler and scorer"):
        compare(BATCH.with_fields(old_logprobs=None), ["rloo"], SCORES, target="importance")


def test_groups_of_one_are_weighted_rewards():
    alone = BATCH.with_fields(groups=np.arange(len(BATCH.rewards)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = compare(alone, ["reinforce"], SCORES, reference="reinforce").to_frame().iloc[0]
    exact = POLICY.moments(est.reinforce(), 1)
    assert row["cosine_low"] < exact.cosine < row["cosine_high"]


def test_attributes_keep_their_level():
    choice = choose_target("auto", BATCH)
    wide, narrow = choice.attributes(0.99), choice.attributes(0.5)
    assert wide["effective_sample_size_low"] < narrow["effective_sample_size_low"]
    assert replace(choice, ratios=None).attributes(0.9)["target"] == "importance"
