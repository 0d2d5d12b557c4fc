"""The group size at which RLOO is as noisy as an estimator."""

import math

import numpy as np
import pytest
from comparison_batches import correlated_batch, quietly
from off_policy import turned_policy

from gradstats.analyses import allocate, equivalent_group_size, registry, variance_by_group_size
from gradstats.analyses.group_sizes import _size
from gradstats.analyses.numbers import format_estimate
from gradstats.estimators import get
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import short_table
from gradstats.stats.intervals import MonotoneFunction
from gradstats.stats.jackknife import Estimate


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("rloo", "rloo in groups of 4 is what other estimators are compared with."),
        ("group_mean", "group_mean in groups of 4 is as noisy as rloo at N = 4 and takes as many tokens"),
    ],
)
def test_multiples_of_rloo_are_equivalent_to_it(label, sentence):
    batch, scores = correlated_batch()
    result = equivalent_group_size(batch, label, 4, scores)
    assert (result.value, result.n_prompts) == (pytest.approx(4.0), 200)
    np.testing.assert_allclose(result.confidence_interval(), [4.0, 4.0])
    assert result.sentence().startswith(sentence)


def test_a_nearly_perfect_baseline_is_worth_a_large_group():
    batch, scores = correlated_batch()
    mean = np.bincount(batch.group_index, weights=batch.rewards)[batch.group_index] / 16
    result = equivalent_group_size(batch.with_fields(rewards=batch.rewards - mean), "reinforce", 4, scores)
    assert result.value == np.inf
    assert result.confidence_interval()[0] > 4
    # The upper end may be infinite where the estimate is not.
    value, low, high = MonotoneFunction(_size, (Estimate(0.1, 0.08, "raw", 100.0),)).with_interval(0.95)
    assert value == pytest.approx(11.0)
    assert 4 < low < 11
    assert high == np.inf


def test_group_size_refusals():
    batch, scores = correlated_batch(n_prompts=5, size=8)
    logits = {"logprobs": -np.ones(batch.mask.shape), "sum_pi_squared": np.full(batch.mask.shape, 0.5)}
    silent = batch.with_fields(rewards=np.ones(40))
    for given, label, size, message in (
        (batch, "rloo", 2, "group_size=2 must be at least 3"),
        (batch, "rloo", 5, "no prompt has the 10 completions"),
        (batch, "batch_mean", 4, "is a batch-level estimator"),
        (silent, "rloo", 4, "gives no completion any weight in groups of 2"),
        (batch.with_fields(**logits), "otb(loo=True)", 4, r"otb\(loo=True\) weights each token, and only scores of"),
        (batch, "remax", 4, "remax needs greedy_rewards, which this batch lacks"),
    ):
        with pytest.raises(ValueError, match=message):
            equivalent_group_size(given, label, size, scores)
    with pytest.raises(ValueError, match="group_sizes=9: choose from 1 to the 8 completions"):
        variance_by_group_size(batch, ["rloo"], [2, 9], scores)
    with pytest.raises(ValueError, match="group_sizes=1: a group of 1 leaves the reference, rloo, no gradient"):
        variance_by_group_size(batch, ["reinforce"], [1], scores)
    with pytest.raises(ValueError, match="a prompt has a single completion, and groups need two"):
        variance_by_group_size(batch.with_fields(groups=np.arange(40)), ["reinforce"], scores=scores)
    batch, scores = correlated_batch()
    with pytest.warns(UserWarning, match=r"not a known multiple.*loo=True"):
        equivalent_group_size(batch, "token_mean", 4, scores)


def test_the_answer_begins_with_the_completions_to_draw_as_that_on_the_split_of_tokens_does():
    policy = EnumeratedPolicy(2, 3, n_prompts=6, rng=4)
    batch, scores, _ = policy.sample(200, 8, rng=0)
    found = quietly(variance_by_group_size, batch, ["rloo"], scores=scores)
    split = quietly(allocate, batch, ["rloo"], scores)
    value, low, high = found.best.size.with_interval(0.95)
    assert (value, low, high) == pytest.approx(split.best_size.with_interval(0.95))
    begins = f"Draw {value:.0f} [{math.floor(low)}, {math.ceil(high)}] completions of each prompt (rloo)."
    assert found.sentence().startswith(f"{begins} At equal tokens, fewer cost ")  # a row of rloo says nothing
    noise = {size: one.with_interval(0.95)[0] for size, one in found.best.relative_noise.items()}
    of_split = split.to_frame().set_index("group_size")["relative_noise"]
    assert noise[2] / noise[4] == pytest.approx(of_split[2] / of_split[4], rel=0.05)
    assert min(noise.values()) > 1
    assert split.sentence().startswith(begins)
    assert split.to_frame().attrs["best_size"] == pytest.approx([value, low, high])


def test_an_estimator_of_another_unit_is_brought_to_the_scale_of_rloo():
    batch, scores = correlated_batch()
    scores = scores + 5.0 * (batch.rewards - 0.5)[:, None]  # a signal that 200 prompts resolve
    assert equivalent_group_size(batch, "recipe:dr_grpo(max_tokens=100)", 4, scores).value == pytest.approx(4.0)
    opposed = scores * np.where(np.arange(len(scores)) % 2, 1.0, -1.0)[:, None]
    with pytest.raises(ValueError, match=r"recipe:grpo: its scale relative to rloo.*not resolved.*measured in"):
        equivalent_group_size(batch, "recipe:grpo", 4, opposed)
    found = quietly(variance_by_group_size, batch, ["rloo", "recipe:grpo"], [4, 8], opposed)
    assert any(note.startswith("recipe:grpo: its scale relative to rloo") for note in found.notes)
    rloo, grpo = found.equivalents_frame().to_dict("records")
    assert rloo["equivalent_group_size"] == pytest.approx(8.0)
    assert all(np.isnan(grpo[name]) for name in grpo if name not in ("estimator", "group_size", "n_prompts"))


def test_tokens_saved_and_the_size_at_the_same_number_of_prompts_are_the_exact_ones():
    """Against enumeration, of a sequence-level and a token-level baseline, and of a recipe in another unit."""
    policy = EnumeratedPolicy(2, 3, n_prompts=3, rng=4)
    batch, scores, tokens = policy.sample(4000, 6, rng=1)
    exact = {n: policy.moments(get("rloo"), n) for n in (2, 3)}
    pairs, larger = (n * exact[n].within_prompt for n in (2, 3))
    cost, sizes = (pairs - larger) * 2.0, np.linspace(1.0001, 30, 2_000_000)
    of_rloo = ((pairs - cost) + cost / (sizes - 1)) / sizes
    labels = ["reinforce", "otb(loo=True)", "recipe:grpo(scale=none)"]
    together = quietly(variance_by_group_size, batch, labels, [3], tokens, group_size=3).equivalents
    for label, found in zip(labels, together, strict=True):
        moments = policy.moments(get(label), 3)
        scale_sq = 1.0 if label != labels[2] else moments.coefficient**2
        saved, low, high = found.tokens_saved.with_interval(0.999)
        assert low < 1 - moments.trace_cov / scale_sq / exact[3].trace_cov < high
        assert low < saved < high
        value, low, high = found.same_prompts_group_size.with_interval(0.999)
        truth = sizes[np.argmin(np.abs(of_rloo - moments.within_prompt / scale_sq))]
        assert low < truth < high
        assert value == pytest.approx(truth, rel=0.2)
    same, noisier = (
        equivalent_group_size(batch, label, 3, scores) for label in ("rloo", "asymmetric(delta=2.0, loo=True)")
    )
    assert same.same_prompts_group_size.value == pytest.approx(3.0)
    assert same.tokens_saved.with_interval(0.95) == (0.0, 0.0, 0.0)
    assert same.to_frame()["same_prompts_group_size_high"].item() == pytest.approx(3.0)
    saved, low, high = noisier.tokens_saved.with_interval(0.95)
    assert saved < 0
    percent = format_estimate(-100 * saved, -100 * high, -100 * low)
    assert f" and takes {percent} % more tokens for the same noise." in noisier.sentence()


def test_without_an_equivalent_size_the_first_screen_shows_what_was_compared():
    batch, scores = correlated_batch(n_prompts=20, size=4)
    analysis = registry.get("group_sizes")
    found = quietly(variance_by_group_size, batch, ["reinforce", "rloo"], scores=scores)
    assert found.equivalents == ()
    assert any("needs two groups of 3: sample at least 6 completions" in note for note in found.notes)
    answer = analysis.answer_of(found, 0.95)
    assert analysis.leading_of(answer) is analysis
    rows = short_table(analysis, answer.frame).rows
    assert [row.names[0] for row in rows] == [f"{label}, N = {n}" for n in (2, 4) for label in ("reinforce", "rloo")]


def test_off_policy_scales_are_estimated_against_the_importance_weighted_target():
    """Against enumeration with an old policy, where REINFORCE and RLOO keep different multiples of the gradient."""
    policy = turned_policy()
    batch, scores, _ = policy.sample(6000, 6, rng=3)
    exact = {(name, n): policy.moments(get(name), n) for name, n in (("rloo", 2), ("rloo", 3), ("reinforce", 3))}
    pairs, larger = (n * exact["rloo", n].within_prompt for n in (2, 3))
    cost = (pairs - larger) * 2.0
    relative = exact["reinforce", 3].coefficient / exact["rloo", 3].coefficient
    truth = (3 * exact["reinforce", 3].within_prompt / relative**2 - (pairs - cost)) / cost
    inverse, asked = (
        equivalent_group_size(batch, "reinforce", 3, scores, target=target).equivalent_group_size.estimates[0]
        for target in ("auto", "on_policy")
    )
    low, high = inverse.confidence_interval(0.999)
    assert low < truth < high
    assert abs(relative - 1.0) > 0.3
    assert not low < asked.value < high
    assert equivalent_group_size(batch, "group_mean", 3, scores).value == pytest.approx(3.0)  # a known multiple of rloo
    far = batch.with_fields(old_logprobs=batch.logprobs - 800.0)
    with pytest.raises(ValueError, match=r"scale of reinforce relative to rloo is not known:.*overflow"):
        equivalent_group_size(far, "reinforce", 3, scores)


@pytest.mark.parametrize(("target", "why"), [("importance", "judged by importance"), ("on_policy", "count as off-pol")])
def test_a_scale_that_is_not_resolved_is_said_with_its_reason_and_level(target, why):
    batch, scores, _ = turned_policy().sample(40, 6, rng=3)
    opposed = scores * np.where(np.arange(len(scores)) % 2, 1.0, -1.0)[:, None]
    with pytest.raises(ValueError, match=f"is not resolved by 40 prompts .*{why}"):
        equivalent_group_size(batch, "reinforce", 3, opposed, target=target)


def test_components_of_rloo_are_known_in_groups_of_all_completions():
    """What is between prompts does not depend on the size, so that what is within them follows from the whole."""
    batch, scores = correlated_batch()
    found = quietly(variance_by_group_size, batch, ["reinforce", "rloo", "group_mean"], scores=scores)
    size, frame = found.group_size_of_run, found.to_frame()
    rows = frame.set_index(["estimator", "group_size"])
    half, whole, own = (rows.loc[key] for key in (("rloo", size // 2), ("rloo", size), ("group_mean", size)))
    assert whole["between_prompt"] == pytest.approx(half["between_prompt"])
    assert whole["within_prompt"] + whole["between_prompt"] == pytest.approx(whole["trace_cov"])
    assert whole["within_prompt_low"] < half["within_prompt"] / 2 < whole["within_prompt_high"]
    assert own["within_prompt"] == pytest.approx(((size - 1) / size) ** 2 * whole["within_prompt"])
    assert np.isnan(rows.loc[("reinforce", size), "within_prompt"])
    drawn = next(one for one in registry.get("group_sizes").figures if one.name == "prompt_parts").rows(frame)
    assert drawn["group_size"].tolist() == [size // 2] * 3
