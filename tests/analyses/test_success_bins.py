"""Gradients split by the success rate of the prompt."""

from __future__ import annotations

import numpy as np
import pytest
from comparison_batches import correlated_batch
from measured_by_hand import breakdowns
from probed_policies import MANY_DIRECTIONS, probed

from gradstats import estimators as est
from gradstats.analyses import registry, variance_by_success
from gradstats.config.sections import VarianceSection
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.report.analysis_tables import short_table

RATES = (0.1, 0.5, 0.9)


def one_choice():
    """A policy that is right or wrong in one token, with a parameter of its own for each prompt."""
    rates, eye = np.array(RATES), np.eye(len(RATES))
    return EnumeratedPolicy(
        vocabulary=2,
        max_length=1,
        n_prompts=len(rates),
        features=lambda prompt, prefix: np.stack([np.zeros(len(rates)), eye[prompt]]),
        theta=np.log(rates / (1 - rates)),
        reward=lambda prompt, tokens: float(tokens[0] == 1),
    )


def exact_shares(policy, estimator, size):
    """Scale, share of gradient and share of variance of each prompt, by enumeration."""
    by_prompt, whole = policy.moments_by_prompt(est.get(estimator), size), policy.moments(est.get(estimator), size)
    chance = policy.prompt_probabilities
    along = chance * [one.mean @ whole.mean for one in by_prompt]
    squares = chance * [one.trace_cov + one.signal_sq for one in by_prompt]
    scale = [one.coefficient for one in by_prompt]
    return np.array([scale, along / whole.signal_sq, (squares - along) / whole.trace_cov]).T


def test_scales_and_shares_are_the_exact_ones():
    policy = one_choice()
    batch, scores, _ = policy.sample(8000, 8, rng=0)
    assert batch.values is not None
    labels = ["grpo", "rloo", "recipe:grpo(scale=none)", "recipe:dapo"]
    found = variance_by_success(batch, labels, scores, success=batch.values[:, 0], bins=[0.0, 0.3, 0.7, 1.0])
    frame = found.to_frame(0.999)
    assert frame["estimator"].tolist() == np.repeat(labels, 3).tolist()
    assert frame["success_low"].tolist() == [0.0, 0.3, 0.7] * 4
    assert frame["n_prompts"][:3].sum() == 8000
    assert found.group_size == 8
    for label, rows in frame.groupby("estimator"):
        exact = exact_shares(policy, label, 8)
        for at, name in enumerate(("scale", "share_of_gradient", "share_of_variance")):
            low, high = rows[f"{name}_low"].to_numpy(), rows[f"{name}_high"].to_numpy()
            assert (low <= exact[:, at] + 1e-12).all(), (label, name)
            assert (exact[:, at] - 1e-12 <= high).all(), (label, name)
            assert (high - low < 0.25).all()
        for name in ("share_of_gradient", "share_of_variance"):
            assert rows[name].sum() == pytest.approx(1.0)
        # A group without spread has no gradient; given that it has one, its scale is larger by 1/P(kept).
        exact_kept = 1.0 - np.array(RATES) ** 8 - (1.0 - np.array(RATES)) ** 8
        assert ((rows["kept_share_low"] < exact_kept) & (exact_kept < rows["kept_share_high"])).all()
        np.testing.assert_allclose(rows["kept_scale"], rows["scale"] / rows["kept_share"], rtol=1e-10)
        kept = exact[:, 0] / exact_kept
        assert ((rows["kept_scale_low"] < kept) & (kept < rows["kept_scale_high"])).all()
    rloo = frame.query("estimator == 'rloo'")
    assert rloo[["scale", "scale_low", "scale_high"]].to_numpy() == pytest.approx(1.0)
    own_mean = frame.query("estimator == 'recipe:grpo(scale=none)'")  # all completions have one token
    assert own_mean[["scale", "scale_low", "scale_high"]].to_numpy() == pytest.approx(7 / 8)


def by_loops(weights, scores, groups, inside, target):
    """Scale and shares from their definitions, prompt by prompt."""
    labels = np.unique(groups)
    g = np.array([weights[groups == one] @ scores[groups == one] for one in labels])
    h = np.array([target[groups == one] @ scores[groups == one] for one in labels])
    m = len(labels)

    def mean_product(first, second, mine, theirs):
        pairs = [(i, j) for i in mine for j in theirs if i != j]
        return sum(first[i] @ second[j] for i, j in pairs) / len(pairs)

    here, everyone = np.flatnonzero(inside), range(m)
    signal = mean_product(g, g, everyone, everyone)
    part = np.where(inside[:, None], g, 0.0)
    along = mean_product(part, g, everyone, everyone)
    trace_cov = np.sum(g**2) / m - signal
    scale = mean_product(g, h, here, here) / mean_product(h, h, here, here)
    return scale, along / signal, (np.sum(part**2) / m - along) / trace_cov


def test_the_bin_is_chosen_by_the_other_half_of_the_completions():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    scores = scores + 3.0 * batch.rewards[:, None]
    found = variance_by_success(batch, ["rloo", "grpo"], scores, bins=[0.0, 0.5, 1.0])
    frame = found.to_frame()
    assert found.group_size == frame.attrs["group_size"] == 4
    assert frame["group_size"].tolist() == [4.0] * 4
    assert "one half of each prompt's completions forms groups of 4 completions, and the other half" in found.notes[0]
    first = np.arange(240) % 8 < 4
    rates = batch.rewards.reshape(30, 8)[:, 4:].mean(axis=1)
    half = batch.select(np.flatnonzero(first))
    target, differ = est.rloo().weights(half), np.ptp(half.rewards.reshape(30, 4), axis=1) > 0
    cases = [(label, inside) for label in ("rloo", "grpo") for inside in (rates < 0.5, rates >= 0.5)]
    for (label, inside), row in zip(cases, frame.to_dict("records"), strict=True):
        expected = by_loops(est.get(label).weights(half), scores[first], half.groups, inside, target)
        for name, value in zip(("scale", "share_of_gradient", "share_of_variance"), expected, strict=True):
            if name == "share_of_variance" or np.isfinite(row[name]):
                assert row[name] == pytest.approx(value, rel=1e-9), (label, name)
        assert row["n_prompts"] == inside.sum()
        assert row["spread_share"] == pytest.approx(differ[inside].mean())
    assert np.isfinite(frame["scale"]).any()
    low = frame["share_of_variance"][0] > frame["share_of_variance"][1]
    most = frame.iloc[0 if low else 1]
    share, first, last = (100 * most[f"share_of_variance{end}"] for end in ("", "_low", "_high"))
    assert found.sentence() == (
        f"The {most['n_prompts'] / 30:.0%} of prompts with success rate {'0–0.5' if low else '0.5–1'} make up "
        f"{share:.0f}% [{first:.0f}, {last:.0f}] of the variance of rloo."
    )


def test_a_run_splits_one_estimator_of_each_unit_and_its_caption_says_how_many_it_leaves_out():
    batch, _, tokens = MANY_DIRECTIONS.sample(20, 8, 0)
    measured = probed(batch, tokens, 8, 2, np.random.default_rng(0))
    analysis = registry.get("success_bins")
    labels = ["rloo", "reinforce", "grpo", "token_mean(loo=True)", "batch_mean"]
    answer = breakdowns(measured, VarianceSection(estimators=labels, reference="reinforce"))["success_bins"]
    assert list(answer.frame["estimator"].unique()) == ["reinforce", "grpo"]
    assert "of the variance of reinforce" in answer.sentence
    assert analysis.caption(answer.frame).endswith("; the run's other 2 are not.")  # a paper has it too: no command
    assert answer.notes[-1].startswith("batch-level estimators are left out, ")
    assert answer.notes[-1].endswith(" here: batch_mean")
    assert short_table(analysis, answer.frame).rows[0].names[0] == "reinforce"
    alone = breakdowns(measured, VarianceSection(estimators=labels[:1]))["success_bins"]
    assert "are not" not in analysis.caption(alone.frame)


def test_degenerate_bins_have_no_scale():
    batch, scores, _ = one_choice().sample(60, 4, rng=0)
    rates = {"success": batch.values[:, 0]}
    frame = variance_by_success(batch, ["rloo", "pass_at_k"], scores, **rates, bins=[0.0, 0.05, 0.2, 1.0]).to_frame()
    empty = frame.iloc[0]
    assert empty[["n_prompts", "share_of_gradient", "share_of_variance"]].tolist() == [0, 0.0, 0.0]
    assert np.isnan(empty[["scale", "kept_share", "spread_share"]].to_numpy(dtype=float)).all()
    found = variance_by_success(batch.with_fields(rewards=np.ones(240)), ["rloo"], scores, **rates, bins=1)
    assert any(note.startswith("every reward equals 1 (choose problems") for note in found.notes)
    silent = found.to_frame()
    assert silent[["kept_share", "spread_share"]].to_numpy().tolist() == [[0.0, 0.0]]
    assert silent[["scale", "share_of_gradient", "share_of_variance"]].isna().to_numpy().all()
    # A target that is not known is not called zero.
    overflowing = batch.with_fields(old_logprobs=batch.logprobs - 800.0)
    notes = variance_by_success(overflowing, ["rloo"], scores, **rates, bins=2).notes
    assert any("overflow" in note for note in notes)
    assert not any("relative to is 0" in note for note in notes)


def test_a_bin_of_equal_groups_shows_no_spread():
    """With one right answer in every group any estimator is a multiple of RLOO there, and of another one elsewhere."""
    batch, scores = correlated_batch(n_prompts=20, size=4)
    prompt, place = np.arange(80) // 4, np.arange(80) % 4
    rewards = (place <= np.where(prompt < 10, 0, prompt % 2)).astype(float)
    success = np.repeat(np.where(np.arange(20) < 10, 0.2, 0.6), 4)
    scores = scores + 20.0 * rewards[:, None]
    found = variance_by_success(batch.with_fields(rewards=rewards), ["grpo"], scores, success=success, bins=2)
    alike, other = found.to_frame().to_dict("records")
    assert np.isnan([alike["scale"], alike["scale_low"], alike["scale_high"], alike["kept_scale"]]).all()
    assert np.isfinite(alike["share_of_gradient"])
    assert other["scale_low"] < other["scale"] < other["scale_high"]


@pytest.mark.parametrize(
    ("labels", "asked", "message"),
    [
        (["batch_mean"], {}, "batch_mean is a batch-level estimator"),
        ([], {}, "estimators is empty"),
        (["rloo"], {"group_size": 5}, r"group_size=5 must lie between 1 and half.*at most 4 here"),
        (["rloo"], {"success": [0.1, 0.2, 0.3]}, r"success has shape \(3,\), expected \(80,\)"),
        (["rloo"], {"success": np.arange(80) / 8}, r"success of completion 1 \(0.125\) differs from that of another"),
    ],
)
def test_what_cannot_be_split_is_refused(labels, asked, message):
    batch, scores = correlated_batch(n_prompts=10, size=8)
    with pytest.raises(ValueError, match=message):
        variance_by_success(batch, labels, scores, **asked)
    with pytest.raises(ValueError, match="success rates need two completions of a prompt"):
        variance_by_success(Batch([0.0, 1.0], [3, 4], [0, 1]), ["rloo"], scores[:2])
