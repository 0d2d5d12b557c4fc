"""What a comparison starts from: measurements, weightings and probes, groups of several sizes, and the target."""

import re
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from comparison_batches import correlated_batch, interleaved_batch, quiet_compare, warned_compare
from off_policy_pair import policy_pair

from gradstats import estimators as est
from gradstats.analyses.length_bins import variance_by_length
from gradstats.analyses.variance import compare
from gradstats.analyses.variance_notes import about_target, moments_of, target_attrs, why_not_judged
from gradstats.estimators import Batch
from gradstats.measurement.measurement import WeightedGradients
from gradstats.plots.marks import with_ends
from gradstats.rollouts.table import Rollouts
from gradstats.stats.on_policy import other_policy_of
from gradstats.stats.variance.inputs import (
    choose_target,
    comparison_inputs,
    pools_by_size,
    prepared_inputs,
    projection_on_target,
    reasons_against,
    recorded_differences,
    refuse_unusable_ratios,
    uses_ratios,
)
from tests.off_policy import TOKEN_RATIOS, ImportanceWeighted, turned_policy


def rollouts_of(lengths, rewards, order=None):
    """Four completions of each prompt."""
    order = np.arange(len(rewards)) if order is None else order
    prompts, completions = [[1]] * len(rewards), [list(range(length)) for length in lengths]
    return Rollouts.from_sequences(prompts, completions, rewards, (order // 4).astype(str), sample_ids=order % 4)


def assert_same(found, expected, *columns):
    for column in columns:
        np.testing.assert_allclose(found[column], expected[column], rtol=1e-8, err_msg=column)


def measurement(n_prompts=8):
    """A measurement of shuffled completions, and its sketches."""
    rng = np.random.default_rng(0)
    n = 4 * n_prompts
    order, lengths = rng.permutation(n), rng.integers(2, 9, n)
    rewards, vectors = (rng.random(n) < 0.5).astype(float), rng.normal(size=(n, 5))
    known = {"lengths": lengths, "sq_norms": (vectors**2).sum(axis=1) * 1.1, "sketches": vectors}
    return SimpleNamespace(rollouts=rollouts_of(lengths, rewards, order), **known), vectors


def test_a_measurement_is_split_by_sample_id_and_its_sketches_are_used():
    measured, vectors = measurement()
    result = quiet_compare(measured, ["rloo", "norm_weighted"], group_size=2)
    assert result.sketch_dim == 5
    assert "sketches of dimension 5 (squared norms are exact)" in " ".join(result.notes)
    order = np.lexsort((measured.rollouts.sample_id, measured.rollouts.prompt_id))
    batch = Batch.from_measurement(measured).select(order)
    by_hand = quiet_compare(batch, ["rloo", "norm_weighted"], vectors[order], group_size=2, scores_are_sketches=True)
    numbers = [one.to_frame().select_dtypes("number") for one in (result, by_hand)]
    np.testing.assert_allclose(*numbers, rtol=1e-8)


def test_a_measurement_without_sketches_is_refused_unless_scores_are_given():
    measured, vectors = measurement()
    exact = quiet_compare(measured, ["rloo"], scores_are_sketches=False).to_frame()
    measured.sketches = None
    no_sketches = "the measurement holds no sketches.*: measure with --set measurement.sketch_dim=16384"
    with pytest.raises(ValueError, match=no_sketches):
        compare(measured, ["rloo"])
    with_scores = quiet_compare(measured, ["rloo"], vectors)
    assert with_scores.sketch_dim is None
    assert exact["trace_cov"].item() == with_scores.to_frame()["trace_cov"].item()


ON_POLICY = ["recipe:grpo", "recipe:dapo", "recipe:gspo", "recipe:cispo", "recipe:dr_grpo", "recipe:kimi_k15(tau=1)"]


def with_log_probabilities(gap: float | None):
    """A measurement with the scored log-probabilities, and the sampler's, a few of them that far off."""
    measured, _ = measurement(n_prompts=12)
    rng = np.random.default_rng(3)
    measured.logprobs = [-rng.random(len(mask)) for mask in measured.rollouts.masks]
    off = [row + (gap or 0.0) * rng.normal(size=len(row)) for row in measured.logprobs]
    measured.old_logprobs = None if gap is None else off
    return measured


def test_weights_that_really_vary_are_refused_with_the_measurement_they_need():
    measured = with_log_probabilities(0.3)
    assert np.isfinite(quiet_compare(measured, ["recipe:gspo", "rloo"]).to_frame()["trace_cov"]).all()
    with pytest.raises(ValueError, match="recipe:grpo weights each token, and only scores of whole"):
        quiet_compare(measured, ["recipe:grpo"])


@pytest.mark.parametrize("gap", [None, 0.0, 1e-3])
def test_recipes_need_only_completions_where_sampler_and_scorer_agree(gap):
    """Without the sampler's log-probabilities, with the same ones, and with rounding beyond GSPO's clip of 3e-4."""
    plain = [f"{label}(ratio=none)" for label in ON_POLICY[:-1]]
    frame = quiet_compare(with_log_probabilities(gap), ON_POLICY).to_frame()
    expected = quiet_compare(with_log_probabilities(None), plain).to_frame()
    assert frame["estimator"].tolist() == ON_POLICY
    np.testing.assert_allclose(frame["trace_cov"][:-1], expected["trace_cov"], rtol=1e-12)
    assert np.isfinite(frame["trace_cov"]).all()


def drawn(rng, probabilities):
    """A measurement of 160 completions of a policy, the exact scores of every token, and which completions they are."""
    scored, _ = policy_pair()
    rows = rng.choice(len(scored.rewards), 160, p=probabilities)
    widths = scored.lengths[rows]
    known = {"lengths": widths, "sq_norms": scored.sq_norms[rows], "sketches": scored.sequence_scores[rows]}
    return SimpleNamespace(rollouts=rollouts_of(widths, scored.rewards[rows]), **known), scored.token_scores[rows], rows


def add_weightings(measured, tokens, labels):
    """The weightings that estimators need, as measured."""
    measured.weighted = {}
    for name, weights in est.token_weightings(labels, measured).items():
        padded = np.stack([np.pad(row, (0, tokens.shape[1] - len(row))) for row in weights])
        vectors = np.einsum("nt,ntd->nd", padded, tokens)
        squares = pd.DataFrame({"all": (vectors**2).sum(axis=1)})
        measured.weighted[name] = WeightedGradients(squares, vectors, None, weights)


def off_policy_measurement(label: str):
    """An off-policy sample with the weightings that a recipe needs, and the scores of tokens."""
    scored, sampler = policy_pair()
    measured, tokens, rows = drawn(np.random.default_rng(1), sampler.probabilities)
    measured.logprobs, measured.old_logprobs = (
        [of.logprobs[row, :width] for row, width in zip(rows, measured.lengths, strict=True)]
        for of in (scored, sampler)
    )
    measured.ref_logprobs = measured.old_logprobs
    add_weightings(measured, tokens, [label])
    return measured, tokens


@pytest.mark.parametrize("group_size", [2, 4])
@pytest.mark.parametrize("label", ["recipe:grpo", "recipe:grpo(kl=in_loss(beta=0.3))", "recipe:dapo(scope=batch)"])
def test_measured_weightings_give_what_token_scores_give(label, group_size):
    measured, tokens = off_policy_measurement(label)
    options = {"group_size": group_size, "n_resamples": 4}
    combined = quiet_compare(measured, [label, "rloo"], scores_are_sketches=False, **options).to_frame()
    sketched = quiet_compare(measured, [label, "rloo"], **options).to_frame()
    batch = Batch.from_measurement(measured)
    exact = quiet_compare(batch, [label, "rloo"], tokens[:, : batch.mask.shape[1]], **options).to_frame()
    assert_same(combined, exact, "trace_cov", "trace_cov_low", "signal_sq", "matched_ratio", "cosine")
    assert_same(sketched, exact, "trace_cov", "signal_sq")  # the sketch's error widens intervals, and no more
    measured.weighted = {}
    again = r"χ² .* is [\d.]+\): measure again with token_weights=.*token_weightings\(\['reci"
    with pytest.raises(ValueError, match=again):
        quiet_compare(measured, [label])


def on_policy_measurement(labels: list[str], nan_inside: bool = False):
    """Completions with state values that the advantages of some estimators were measured with, and token scores."""
    rng = np.random.default_rng(4)
    measured, tokens, _ = drawn(rng, policy_pair()[0].probabilities)
    # NaN inside of a step, as means of further completions have them.
    measured.values = [
        np.where((np.arange(width) > 0) & nan_inside, np.nan, rng.random(width)) for width in measured.lengths
    ]
    add_weightings(measured, tokens, labels)
    return measured, tokens


OF_VALUES = ["gae", "gae(lam=0.5)", "recipe:ppo", "recipe:custom(advantage=gae, scale=batch_std)", "vine(k=2)"]


@pytest.mark.parametrize("group_size", [2, 4])
@pytest.mark.parametrize("label", OF_VALUES)
def test_measured_advantages_from_state_values_give_what_token_scores_give(label, group_size):
    of_steps = label.startswith("vine")
    measured, tokens = on_policy_measurement([label] if of_steps else OF_VALUES, nan_inside=of_steps)
    assert list(measured.weighted) == ([label] if of_steps else ["gae", "gae(lam=0.5)", "vine(k=2)"])
    options = {"group_size": group_size, "n_resamples": 4}
    combined = quiet_compare(measured, [label, "rloo"], scores_are_sketches=False, **options).to_frame()
    batch = Batch.from_measurement(measured)
    exact = quiet_compare(batch, [label, "rloo"], tokens[:, : batch.mask.shape[1]], **options).to_frame()
    compared = ("trace_cov", "trace_cov_low", "signal_sq", "matched_ratio", "matched_bias_share", "cosine")
    assert_same(combined, exact, *compared)


def test_the_completions_behind_values_of_steps_are_counted_beside_the_noise():
    measured, tokens = on_policy_measurement(["vine(k=2)"])
    left = 0
    for row, width in zip(measured.values, measured.lengths, strict=True):
        row[1:-1:2] = np.nan
        # Where steps begin, but for the first, which all completions of a prompt share.
        left += sum(width - at for at in np.flatnonzero(np.isfinite(row)).tolist() if at > 0)
    batch = Batch.from_measurement(measured)
    frame = pd.DataFrame({"prompt": measured.rollouts.prompt_id, "length": measured.lengths})
    times = 2 * (left + frame.groupby("prompt")["length"].mean().sum()) / frame["length"].sum()
    told = f"vine(k=2) are not counted: 2 from each state take about {times:.1f} times the tokens of those compared"
    for labels, text in ((["rloo", "vine(k=2)"], told), (["rloo"], "are not counted")):
        notes = " ".join(quiet_compare(batch, labels, tokens[:, : batch.mask.shape[1]]).notes)
        assert (text in notes) == (len(labels) == 2)


def test_advantages_that_were_measured_with_other_values_or_rewards_are_refused():
    measured, _ = on_policy_measurement(["gae"])
    with pytest.raises(ValueError, match=r"gae\(lam=0.5\) weights each token.*token_weightings\(\['gae"):
        quiet_compare(measured, ["gae(lam=0.5)"])
    others = [row + 0.1 for row in measured.values]
    again = "weights of gae are not multiples of the advantages that were measured as gae: rewards or state values have"
    with pytest.raises(ValueError, match=again):
        quiet_compare(measured, ["gae"], values=others)
    with_others = SimpleNamespace(**{**vars(measured), "values": others})
    assert again in str(reasons_against(with_others, [est.get("gae")], "on_policy"))
    measured.rollouts = rollouts_of(measured.lengths, 1.0 - measured.rollouts.rewards)
    with pytest.raises(ValueError, match=again):
        quiet_compare(measured, ["gae"])
    measured.weighted["gae"] = replace(measured.weighted["gae"], weights=None)  # of a version that did not keep them
    with pytest.raises(ValueError, match="only scores of whole completions are known"):
        quiet_compare(measured, ["gae"])


def with_probes(measured, tokens, n_heavy):
    """Add token scores along as many orthogonal probes as there are parameters, which is exact."""
    dim = tokens.shape[-1]
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(dim, dim)))[0] * np.sqrt(dim)
    of_completion = [token[:width] for token, width in zip(tokens, measured.lengths, strict=True)]
    measured.token_projections = [token @ basis for token in of_completion]
    measured.heavy_positions = [np.arange(n_heavy)] * len(tokens)
    measured.heavy_sketches = [token[:n_heavy] for token in of_completion]
    measured.heavy_sq_norms = [(token[:n_heavy] ** 2).sum(axis=1) for token in of_completion]


@pytest.mark.parametrize("n_heavy", [0, 1])
def test_measured_weightings_and_probes_of_tokens_serve_side_by_side(n_heavy, unchecked):
    """Along as many orthogonal probes as there are parameters, probes are exact; so are weightings without them."""
    labels = ["recipe:grpo", "discounted(gamma=0.8)", "rloo", "recipe:dapo(scope=batch)"]
    measured, tokens = off_policy_measurement("recipe:grpo")
    measured.weighted |= off_policy_measurement("recipe:dapo(scope=batch)")[0].weighted
    with_probes(measured, tokens, n_heavy)
    options = {"group_size": 2, "n_resamples": 4, "reference": "discounted(gamma=0.8)"}
    found = quiet_compare(measured, labels, scores_are_sketches=False, **options).to_frame()
    batch = Batch.from_measurement(measured)
    exact = quiet_compare(batch, labels, tokens[:, : batch.mask.shape[1]], **options).to_frame()
    assert_same(found, exact, "trace_cov", "signal_sq", "ratio", "matched_ratio", "cosine", "matched_bias_share")
    split = {"n_bins": 2, "group_size": 2}
    by_length = variance_by_length(measured, labels[:3], scores_are_sketches=False, **split)
    expected = variance_by_length(batch, labels[:3], tokens[:, : batch.mask.shape[1]], **split)
    assert_same(by_length.to_frame(), expected.to_frame(), "trace_cov")
    # That of grpo was measured and rests on no probe, whose error widens the interval of the other.
    alone, _ = off_policy_measurement("recipe:grpo")
    without = quiet_compare(alone, ["recipe:grpo"], scores_are_sketches=False, group_size=2).to_frame()
    widths = [frame["trace_cov_high"][0] - frame["trace_cov_low"][0] for frame in (found, without)]
    assert widths[0] == pytest.approx(widths[1], rel=1e-6)

    pair = [est.get("recipe:grpo"), est.get("discounted(gamma=0.8)")]
    inputs = comparison_inputs(measured, None, False, [est.get(label) for label in labels])
    inputs, (grpo, *_) = inputs.with_combined(pair)
    scores = inputs.prepared(np.arange(len(tokens)))
    by_token = [one.weights(batch) for one in pair]
    combined = scores.combined.weighted(grpo.weights(batch)).vectors
    probed = scores.weighted(by_token[1]).vectors
    first, second = (np.einsum("nt,ntd->nd", one, tokens[:, : one.shape[1]]) for one in by_token)
    signs = scores.signs[: probed.shape[1]]
    np.testing.assert_allclose((combined * signs) @ probed.T, first @ second.T, atol=1e-12)


def pools(batch, scores, enough, sketched=False):
    inputs, _, judged = prepared_inputs(batch, [est.rloo()], scores, sketched, "auto")
    return pools_by_size(inputs, judged, enough, np.random.default_rng(0))


def test_coefficients_are_those_of_known_multiples():
    batch, scores = correlated_batch()
    scores = scores + 5.0 * (batch.rewards - 0.5)[:, None]
    opposed = scores * np.where(np.arange(len(scores)) % 2, 1.0, -1.0)[:, None]
    along, unresolved = (
        projection_on_target(pool, moments_of(pool, est.group_mean()), found.judged)
        for found in (pools(batch, one, np.ones(200, dtype=bool)) for one in (scores, opposed))
        for pool in [found.pool(4)]
    )
    coefficient = along[0] / along[1]
    assert coefficient.value == pytest.approx(0.75)
    assert coefficient.estimate().stderr == pytest.approx(0.0, abs=1e-12)
    assert unresolved is None


POLICY = turned_policy()
BATCH, SCORES, TOKEN_SCORES = POLICY.sample(4000, 3, rng=5)


def test_a_biased_estimator_is_judged_against_rloo_whatever_the_reference():
    batch, scores = interleaved_batch([4] * 60, signal=3.0)
    names = ["rloo", "grpo"]
    frames = [quiet_compare(batch, names, scores, reference=name).to_frame() for name in names]
    for frame in frames:
        assert (frame["cosine"][0], frame["bias_share"][0]) == (pytest.approx(1.0), 0.0)
        assert frame["bias_share"][1] > 0.1
    np.testing.assert_allclose(frames[0]["cosine"], frames[1]["cosine"], rtol=1e-12)


def test_off_policy_the_ranking_is_that_of_the_scored_policy():
    comparison = quiet_compare(BATCH, ["rloo", TOKEN_RATIOS, ImportanceWeighted()], TOKEN_SCORES)
    frame = comparison.to_frame(0.999).set_index("estimator")  # nine intervals are to hold at once
    assert set(frame["target"]) == {"importance"}
    for estimator in (est.rloo(), TOKEN_RATIOS, ImportanceWeighted()):
        moments, row = POLICY.moments(estimator, 3), frame.loc[estimator.label]
        exact = {"cosine": moments.cosine, "matched_bias_share": moments.matched_bias_share(128)}
        for name, value in (exact | {"trace_cov": moments.trace_cov}).items():
            assert row[f"{name}_low"] - 1e-9 <= value <= row[f"{name}_high"] + 1e-9, (estimator.label, name)
        assert row["cosine"] == pytest.approx(moments.cosine, abs=0.08)
    assert frame.loc["rloo", "cosine"] < 0.75 < 0.95 < frame.loc[TOKEN_RATIOS.label, "cosine"]
    assert frame.loc["rloo", "matched_bias_share"] > 0.5 > frame.loc[TOKEN_RATIOS.label, "matched_bias_share"]
    target = frame.loc[ImportanceWeighted().label]  # has cosine one and no bias
    assert list(target[with_ends("cosine")]) == pytest.approx([1, 1, 1])
    assert list(target[with_ends("matched_bias_share")]) == pytest.approx([0, 0, 0], abs=1e-9)


def test_judged_on_policy_the_ranking_turns_round():
    frame = quiet_compare(BATCH, ["rloo", TOKEN_RATIOS], TOKEN_SCORES, target="on_policy").to_frame()
    assert frame["cosine"][0] == pytest.approx(1)
    assert frame["cosine"][1] < 0.8
    assert frame["matched_bias_share"][0] == pytest.approx(0, abs=1e-12)
    assert "judged against rloo as asked for, although χ² of whole completions is 0.15" in frame.attrs["notes"][0]


@pytest.mark.parametrize("asked", ["importance", "auto"])
def test_small_ratios_count_where_the_target_is_weighted_by_them(asked):
    """At χ² = 0.005 rloo is biased by little, not by exactly 0; recorded settings decide under auto."""
    policy = turned_policy(0.037)
    assert 0.004 < policy.chi_squared < 0.006
    batch, scores, _ = policy.sample(4000, 3, rng=5)
    differences = ["temperature=0.9"] if asked == "auto" else []
    with mock.patch("gradstats.stats.variance.inputs.recorded_differences", return_value=differences):
        frame = quiet_compare(batch, ["rloo", "recipe:rloo_is"], scores, target=asked).to_frame(0.999)
    (plain, weighted), exact = frame.to_dict("records"), policy.moments(est.rloo(), 3).cosine
    assert frame.attrs["target"] == "importance"
    assert plain["cosine_low"] < exact < plain["cosine_high"]
    assert plain["cosine"] < 0.999
    assert plain["matched_bias_share"] > 0
    assert weighted["cosine"] == pytest.approx(1)
    assert weighted["trace_cov"] != pytest.approx(plain["trace_cov"], rel=1e-4)


def test_the_frame_says_what_it_was_judged_against():
    frame = quiet_compare(BATCH, ["rloo"], SCORES).to_frame(0.9)
    size, low, high = (frame.attrs[f"effective_sample_size{end}"] for end in ("", "_low", "_high"))
    assert frame.attrs["target"] == "importance"
    assert low < size < high
    assert size == pytest.approx(12000 / (1 + POLICY.chi_squared), rel=0.02)
    assert target_attrs(choose_target("auto", BATCH), 0.5)["effective_sample_size_low"] > low
    text = "importance-weighted gradient of the scored policy (rloo_is), since χ²"
    assert any(text in note for note in frame.attrs["notes"])
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
    """300 groups of one completion and 300 of four, with scores of mean 0 that point along the reward."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(600), [1] * 300 + [4] * 300)
    rewards = (rng.random(1500) < 0.5).astype(float)
    scores = rng.normal(size=(1500, 4)) + 3.0 * (rewards - 0.5)[:, None] * np.eye(4)[0]
    return Batch(rewards, rng.integers(3, 60, 1500), groups), scores


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


def test_rounding_stays_on_policy_with_a_bound_unless_recorded_settings_differ():
    choice = choose_target("auto", slightly_off(1e-4))
    assert (choice.kind, choice.agree) == ("on_policy", True)
    assert "move the gradient by at most 0.01 of a completion's" in about_target(choice)
    assert choose_target("auto", slightly_off(0.04)).kind == "importance"
    choice = choose_target("auto", slightly_off(1e-4), ["temperature=0.9"])
    assert (choice.kind, why_not_judged(choice)) == ("importance", None)
    assert "since the sampler's settings differ (temperature=0.9)" in about_target(choice)


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
    assert re.search(match, why_not_judged(choice))


def test_what_is_recorded_of_sampler_and_scorer():
    columns = dict.fromkeys(("frame", "rewards", "prompt_id", "masks", "tokens", "sample_id", "lengths", "truncated"))
    scorer = {"temperature": 1.0, "revision": "step-2", "adapter": None}
    for sampler, revision, expected in (
        ({"temperature": 1.0, "top_p": 1.0}, "step-2", set()),
        ({"temperature": 0.6, "min_p": 0.1}, "step-1", {"temperature=0.6", "min_p=0.1", "revision=step-1"}),
    ):
        recorded = {"sampler": sampler, "policy": {"revision": revision, "adapter": None}}
        measured = SimpleNamespace(rollouts=SimpleNamespace(metadata=recorded, **columns), metadata={"policy": scorer})
        assert set(recorded_differences(measured)) == expected
    assert recorded_differences(BATCH) == []


B = "b" * 12  # of a digest that is longer


@pytest.mark.parametrize(
    ("drawn", "scored", "differing"),
    [
        ({"name": "fp8", "digests": {"weights": "b"}}, {"name": "m", "digests": {"weights": "a"}}, ["policy=fp8"]),
        ({"name": "m", "digests": {"weights": "b" * 64}}, {"name": "m", "digests": {"weights": "a"}}, [f"weights={B}"]),
        ({"name": "link", "digests": {"weights": "a"}}, {"name": "m", "digests": {"weights": "a"}}, []),
        ({"name": "served"}, {"name": "m", "digests": {"weights": "a"}}, []),
        (
            {"name": "m", "revision": "1", "digests": {"weights": "b"}},
            {"name": "m", "revision": "2", "digests": {"weights": "a"}},
            ["revision=1"],
        ),
    ],
)
def test_other_weights_are_another_policy_and_another_name_is_not(drawn, scored, differing):
    assert other_policy_of(drawn, scored) == differing


def test_what_cannot_be_judged_is_nan_and_the_variance_stays():
    few = np.arange(45)
    frame, text = warned_compare(BATCH.select(few), ["rloo", "grpo"], SCORES[few])
    assert "the effective sample size is" in text.splitlines()[0]
    judged = ["cosine", "cosine_low", "bias_share", "matched_bias_share", "matched_bias_share_high"]
    assert frame[judged].isna().all(axis=None)
    assert np.isfinite(frame[["trace_cov", "ratio"]]).all(axis=None)
    with pytest.raises(ValueError, match="target='importance' needs the log-probabilities of sampler and scorer"):
        compare(BATCH.with_fields(old_logprobs=None), ["rloo"], SCORES, target="importance")


def test_which_weights_depend_on_ratios():
    using = ["recipe:grpo", "recipe:gspo", "recipe:reinforce(mask=reject_tokens(high=0.5))"]
    using += ["rloo(off_policy=True)", "norm_weighted(off_policy=True)"]
    labels = ["rloo", "recipe:dr_grpo(ratio=none)", *using]
    assert [label for label in labels if uses_ratios(est.get(label))] == using


def one_far_completion(gap: float) -> Batch:
    """Eight completions of 3 tokens, the sampler's log-probabilities of completion 5 lower by the gap a token."""
    old = np.full((8, 3), -1.0)
    old[5] -= gap
    return Batch(np.arange(8) % 2, [3] * 8, np.repeat([0, 1], 4), logprobs=np.full((8, 3), -1.0), old_logprobs=old)


def test_a_ratio_that_overflows_names_estimator_and_completion():
    far, near = one_far_completion(800.0), one_far_completion(0.1)
    choice = choose_target("auto", far)
    refuse_unusable_ratios([est.get("rloo")], far, choice)
    with pytest.raises(ValueError, match=r"^recipe:gspo: the ratio π/π_old of completion 5 is e\^800, which overflows"):
        refuse_unusable_ratios([est.get("rloo"), est.get("recipe:gspo")], far, choice)
    refuse_unusable_ratios([est.get("recipe:gspo")], near, choose_target("auto", near))


def test_unknown_ratios_are_refused_off_policy_only():
    unknown, grpo = one_far_completion(0.0).with_fields(old_logprobs=None), [est.get("recipe:grpo")]
    refuse_unusable_ratios(grpo, unknown, choose_target("auto", unknown))
    with pytest.raises(ValueError, match=r"recipe:grpo weights by the ratios .* drawn with temperature=0\.6 by a"):
        refuse_unusable_ratios(grpo, unknown, choose_target("auto", unknown, ["temperature=0.6"]))
    refuse_unusable_ratios(grpo, unknown, choose_target("on_policy", unknown, ["temperature=0.6"]))
