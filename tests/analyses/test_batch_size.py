"""The critical batch and what a step reaches: exact on enumerated policies, covered where a value is shown."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly

import gradstats as gs
from gradstats import estimators as est
from gradstats.analyses import batch_size, registry
from gradstats.analyses.curve import variance_curve
from gradstats.analyses.numbers import format_estimate, percentage
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import short_table, table_of
from gradstats.stats.intervals import FiellerRatio, SkewedMeanEstimate
from gradstats.stats.jackknife import Estimate
from gradstats.stats.variance.alignment import CriticalBatch, selection_adjusted_upper

LABELS = ["rloo", "reinforce", "group_mean", "grpo"]
SIZE = 3


def policy_of(signal=0.4, tail=0.0, n_prompts=60, dim=24, seed=0):
    """A policy whose prompts share one direction of improvement, with lognormal norms of their scores."""
    rng = np.random.default_rng(seed)
    scales, hardness = np.exp(tail * rng.normal(size=n_prompts) / 2.0), 0.5 * rng.normal(size=n_prompts)

    @cache
    def features(prompt, prefix):
        found = rng.normal(size=(3, dim))
        found[1, 0] += signal * np.sqrt(dim) * (1.0 + np.tanh(3.0 * hardness[prompt]))
        found *= scales[prompt] / np.sqrt(dim)
        found[:, 1] = [0.0, 0.4 * hardness[prompt], 0.0]
        return found

    sizes = {"vocabulary": 3, "max_length": 2, "n_prompts": n_prompts, "rng": seed}
    known = {"features": features, "theta": np.eye(dim)[1] * 4.0}
    return EnumeratedPolicy(**sizes, **known, reward=lambda prompt, tokens: float(tokens[0] == 1))


def exact(policy, label, size=SIZE):
    """The critical batch and the squared cosine, by enumeration."""
    moments = policy.moments(est.get(label), size)
    goal = float(policy.gradient @ policy.gradient)
    return moments.matched_trace_cov / goal, moments.cosine**2


def alignment(critical, limit, n):
    return 1.0 / (1.0 / limit + critical / n)


@pytest.fixture(scope="module")
def policy():
    return policy_of()


@pytest.fixture(scope="module")
def sample(policy):
    return policy.sample(4000, SIZE, rng=0)[:2]


def test_numbers_are_those_of_the_enumeration(policy, sample):
    found = batch_size(sample[0], LABELS, sample[1], prompts=16)
    frame = found.to_frame(0.999).set_index("estimator")
    base = exact(policy, "rloo")
    for label, judged in zip(LABELS, found.rows, strict=True):
        (critical, limit), row = exact(policy, label), frame.loc[label]
        truth = {
            "critical_batch": critical,
            "alignment": alignment(critical, limit, 16),
            "alignment_limit": limit,
            "relative_prompts": critical / base[0],
            "relative_progress": alignment(critical, limit, 16) / alignment(*base, 16),
        }
        shown = {name: (row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in truth}
        truth["half"] = critical / (2.0 - 1.0 / limit)
        shown["half"] = judged.of_batches.groups_for(0.5).with_interval(0.999)
        for name, (value, low, high) in shown.items():
            assert low - 1e-9 <= truth[name] <= high + 1e-9, (label, name)
            assert low - 1e-9 <= value <= high + 1e-9, (label, name)
        assert row["critical_batch_high"] < 1.6 * row["critical_batch_low"]
    # An own-sample mean is RLOO at another scale, and never passes or falls short of it.
    np.testing.assert_allclose(frame.loc["group_mean", "critical_batch"], frame.loc["rloo", "critical_batch"])


def observed(gradients, goal):
    """The alignment of means of 8 gradients with the true one, without any estimate."""
    means = gradients[: len(gradients) // 8 * 8].reshape(-1, 8, len(goal)).mean(axis=1)
    return (means @ goal).mean() ** 2 / ((means**2).sum(axis=1).mean() * (goal @ goal))


def gradients_of(label, policy, n, rng):
    batch, scores, _ = policy.sample(n, SIZE, rng=rng)
    return (est.get(label).weights(batch)[:, None] * scores).reshape(-1, SIZE, scores.shape[1]).sum(axis=1)


def test_groups_drawn_until_they_have_a_weight(policy, sample):
    """Dynamic sampling reaches what batches of the groups with a weight reach."""
    found = batch_size(sample[0], ["rloo"], sample[1], prompts=8)
    row, of_batches = found.to_frame().iloc[0], found.rows[0].of_batches
    assert of_batches is not None
    gradients = gradients_of("rloo", policy, 60_000, np.random.default_rng(3))
    with_weight = (gradients != 0).any(axis=1)
    assert row["silent_groups"] == pytest.approx(1.0 - with_weight.mean(), abs=0.03)
    kept = 1.0 - row["silent_groups"]
    dynamic, low, high = of_batches.of_kept(8, kept).with_interval(0.95)
    assert low - 0.02 < observed(gradients[with_weight], policy.gradient) < high + 0.02
    same_tokens, *_ = of_batches.at(8 / kept).with_interval(0.95)
    assert same_tokens < dynamic < same_tokens + 0.1
    (note,) = [one for one in found.notes if "drawing until 8 groups have one" in one]
    assert note.endswith(
        f"takes {row['tokens'] / kept:,.0f} tokens and reaches an alignment of {dynamic:.3g}, and all groups of as "
        f"many tokens {same_tokens:.3g}"
    )


def test_the_sentence_and_the_curve_agree_with_the_table(sample):
    found = batch_size(sample[0], LABELS, sample[1], prompts=16)
    row, of_batches = found.to_frame().iloc[0], found.rows[0].of_batches
    assert of_batches is not None
    sentence = found.sentence()
    doubled = of_batches.at(32.0).with_interval(0.95)[0]
    half = format_estimate(*of_batches.groups_for(0.5).with_interval(0.95))  # with the table's digits
    ends = percentage(*(row[f"alignment{end}"] for end in ("", "_low", "_high")))
    assert sentence == (
        f"With 16 prompts × 3 completions, a step of rloo makes {ends} of the progress of one without noise; with "
        f"twice as many prompts it would make {doubled:.0%}. For half of the noiseless progress it takes "
        f"{half} prompts. "
        f"{row['silent_groups']:.0%} of its groups carry no signal: every advantage is 0."
    )
    ax = registry.get("batch_size").figures[0].draw(found.to_frame())
    line = next(one for one in ax.lines if len(one.get_xdata()) > 100)
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    assert np.interp(16.0, x, y) == pytest.approx(row["alignment"], abs=1e-3)
    tokens = batch_size(sample[0], ["rloo"], sample[1], tokens=float(row["tokens"]))
    assert tokens.prompts == pytest.approx(16.0)


def test_the_first_screen_is_sorted_and_says_alignment_and_groups_without_signal(sample):
    analysis = registry.get("batch_size")
    found = batch_size(sample[0], ["reinforce", "rloo", "token_mean(loo=True)"], sample[1])
    frame = found.to_frame()
    assert list(table_of(analysis, frame, in_words=False).rows) == list(
        frame.sort_values("critical_batch")["estimator"]
    )
    shown = analysis.summary_columns(frame)
    assert shown == ["critical batch", "alignment", "without signal", "prompts for equal alignment"]
    # The reference first, wherever it stands.
    assert found.sentence().startswith("With 64 prompts × 3 completions, a step of rloo makes ")
    assert f"{frame['silent_groups'][1]:.0%} of its groups carry no signal: every advantage is 0." in found.sentence()
    few = batch_size(sample[0], ["reinforce", "rloo"], sample[1], prompts=16).to_frame()
    assert short_table(analysis, few).headings[:3] == ("critical batch", "alignment", "without signal")


def test_without_a_resolved_signal_there_are_bounds_and_a_plan():
    batch, scores = correlated_batch(n_prompts=40, size=8)
    found = quietly(batch_size, batch, ["rloo", "recipe:grpo"], scores)
    frame = found.to_frame()
    assert found.prompts == 64
    assert frame[["critical_batch", "alignment"]].isna().all(axis=None)
    assert (frame["critical_batch_low"] > 0).all()
    assert np.isinf(frame["critical_batch_high"]).all()
    assert (frame["alignment_high"] < 1).all()
    assert (frame["prompts_to_resolve"] > 40).all()
    assert re.search(r"\. About .* prompts like these would resolve the signal\.$", found.sentence())
    inwards = 0
    for prompts in (16, 24, 32, 48):  # a bound is rounded up
        found = quietly(batch_size, batch, ["rloo"], scores, prompts=prompts)
        high = 100 * found.to_frame()["alignment_high"][0]
        assert f"a step of rloo makes at most {math.ceil(high)}% of the progress" in found.sentence()
        inwards += round(high) < high
    assert inwards > 0  # which rounding to the nearest would do


def test_estimators_of_batch_level_are_answered_by_dealing(sample):
    batch, scores = sample[0].select(np.arange(900)), sample[1][:900]
    both, alone = (
        quietly(batch_size, batch, labels, scores, prompts=400)
        for labels in (["rloo", "batch_mean(loo=True)"], ["batch_mean(loo=True)"])
    )
    assert np.isfinite(both.to_frame()["critical_batch"]).all()
    assert any("dealt batches of 75 prompts, a quarter of those" in note for note in both.notes)
    assert [any("drawing until" in note for note in one.notes) for one in (both, alone)] == [True, False]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        *(({"prompts": given}, "prompts=.* is not a batch: give at least 1 prompt") for given in (0, 0.5, -3)),
        *(({"prompts": given}, "prompts=.* is not a batch: give at least 1 prompt") for given in (np.nan, np.inf)),
        ({"tokens": 3}, "tokens=3 is below one group, which takes"),
        ({"prompts": 8, "tokens": 1000}, "both state the size of the batch: give one"),
        ({"reference": "batch_mean"}, "reference='batch_mean' is a batch-level estimator"),
    ],
)
def test_what_is_not_a_batch_is_refused(asked, message):
    batch, scores = correlated_batch(n_prompts=6, size=4)
    with pytest.raises(ValueError, match=message):
        batch_size(batch, ["rloo"], scores, **asked)


def coverage(policy, n_prompts, replications, seed=0):
    """Return (estimator, quantity) → whether each interval that is shown with a value covers."""
    covered: dict[tuple[str, str], list[bool]] = {}
    labels = ["rloo", "reinforce", "grpo"]
    truth = {label: exact(policy, label) for label in labels}
    for replication in range(replications):
        batch, scores, _ = policy.sample(n_prompts, SIZE, rng=np.random.default_rng([seed, n_prompts, replication]))
        frame = quietly(batch_size, batch, labels, scores).to_frame()
        for row in frame.to_dict("records"):
            critical, limit = truth[row["estimator"]]
            for name, value in (("critical_batch", critical), ("alignment", alignment(critical, limit, 64))):
                if np.isfinite(row[name]):
                    inside = row[f"{name}_low"] - 1e-9 <= value <= row[f"{name}_high"] + 1e-9
                    covered.setdefault((row["estimator"], name), []).append(inside)
    return covered


@pytest.mark.parametrize("signal", [0.3, 1.0, 2.0, 3.0, 6.0])
def test_the_upper_end_covers_among_the_values_that_are_shown(signal):
    """A known noise over a normal estimate of the signal, in units of its error: few values are shown at first."""
    covered, without = [], []
    for found in signal + np.random.default_rng(0).normal(size=3000):
        ratio = FiellerRatio(1.0 / found, found, 1.0 / found**2, -1.0 / found, 1.0, 1e6)
        low, high = ratio.within(0.95, 0.0, np.inf)
        if np.isfinite(high):
            raised = selection_adjusted_upper(ratio, high, 0.95)
            assert raised >= high
            if found > 4.0:
                assert raised == high  # most studies of the least signal that is compatible would show a value
            without.append(low <= 1.0 / signal <= high)
            covered.append(low <= 1.0 / signal <= raised)
    assert np.mean(covered) >= 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / len(covered))
    if signal < 1.0:
        assert np.mean(without) < 0.7


def test_heavy_tails_raise_the_upper_end_to_that_of_the_noise():
    """Of a known signal the critical batch is a multiple of the noise, and so are the ends of its interval."""
    ratio = FiellerRatio(
        value=8.0, denominator=0.25, contrast_variance=0.4**2, covariance=0.0, denominator_variance=0.0, degrees=199.0
    )
    noise = SkewedMeanEstimate(2.0, 0.2, "log", 199.0, n_prompts=200, spread=1.5)
    critical, by_noise = CriticalBatch(ratio, 0.0, noise), noise.confidence_interval(0.95)[1] / noise.value
    assert by_noise > 1.7  # a lognormal sample's, beyond Student's exp(0.39)
    assert critical.with_interval(0.95)[2] == pytest.approx(8.0 * by_noise)
    light = CriticalBatch(ratio, 0.0, Estimate(2.0, 0.2, "log", 199.0))
    assert light.with_interval(0.95)[2] == pytest.approx(8.0 * np.exp(0.2 * 1.9719565))


def test_an_alignment_is_shown_wherever_its_critical_batch_is(policy):
    """Also of a biased estimator whose cosine is not resolved; its alignment may then be 0."""
    unresolved = 0
    for seed in range(12):
        batch, scores, _ = policy.sample(60, SIZE, rng=np.random.default_rng([3, seed]))
        frame = quietly(batch_size, batch, ["token_mean", "rloo"], scores).to_frame().set_index("estimator")
        assert (np.isfinite(frame["alignment"]) == np.isfinite(frame["critical_batch"])).all()
        if np.isfinite(frame.loc["token_mean", "alignment"]) and frame.loc["token_mean", "alignment_limit_low"] == 0.0:
            unresolved += 1
            assert frame.loc["token_mean", "alignment_low"] == 0.0
    assert unresolved >= 1


def test_intervals_cover_in_a_few_data_sets(policy):
    for key, inside in coverage(policy, 100, 40).items():
        assert np.mean(inside) >= 0.93 - 2.5 * np.sqrt(0.93 * 0.07 / len(inside)), key


@pytest.mark.slow
@pytest.mark.parametrize("n_prompts", [100, 400])
@pytest.mark.parametrize("tail", [0.0, 1.5, 2.0])
def test_intervals_cover_where_a_value_is_shown(tail, n_prompts):
    found = coverage(policy_of(tail=tail, n_prompts=200), n_prompts, 200)
    for key, inside in found.items():
        assert np.mean(inside) >= 0.93 - 2.0 * np.sqrt(0.93 * 0.07 / len(inside)), (key, np.mean(inside))


def test_notes_are_those_of_the_level_of_the_answer(policy):
    batch, scores, *_ = policy.sample(40, SIZE, rng=0)
    compared = gs.compare(batch, ["rloo"], scores)
    for level, is_resolved in ((0.8, True), (0.95, True), (0.99, False)):
        notes = registry.get("variance").answer_of(compared, level).notes
        assert any(f"its {level:.0%} interval reaches" in note for note in notes) != is_resolved, level
        assert list(notes) == compared.to_frame(level).attrs["notes"], level
    assert compared.notes == compared.notes_at(0.95)
    # Parts that agree at 95 % may differ at another level.
    batch, scores, *_ = policy.sample(60, 4, rng=0)
    compared = gs.compare(batch, ["rloo"], scores, group_size=[2, 4])
    unresolved = [f"group_size={row.group_size}" for row in compared.rows if not row.resolved(0.99)]
    said = [note.partition(":")[0] for note in compared.notes_at(0.99) if "is not resolved" in note]
    assert said == unresolved != []


@pytest.mark.parametrize(("level", "is_known"), [(0.8, True), (0.95, True), (0.99, False)])
def test_what_is_said_of_the_signal_is_of_the_level_of_the_answer(policy, level, is_known):
    batch, scores, *_ = policy.sample(20, SIZE, rng=1)  # whose signal is resolved at 95 %, and not at 99 %
    answer = registry.get("batch_size").answer_of(batch_size(batch, ["rloo"], scores, prompts=16), level)
    assert np.isnan(answer.frame["prompts_to_resolve"]).all() == is_known
    assert ("resolve the signal" in answer.sentence) != is_known
    assert is_known or answer.sentence.endswith("; 99% intervals.")
    # The minimiser of a curve is known where every value is resolved.
    batch, scores, *_ = policy.sample(40, SIZE, rng=0)
    curve = variance_curve(batch, "length_weighted", "alpha", [-0.1, 0.0, 0.1], scores)
    answer = registry.get("curve").answer_of(curve, level)
    assert np.isfinite(answer.about["minimiser"]) == is_known
    assert ("is not known" in answer.sentence) != is_known
    assert any("where the variance is lowest is not known" in note for note in answer.notes) != is_known
