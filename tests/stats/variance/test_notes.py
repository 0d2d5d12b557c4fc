"""Warnings and remarks of a comparison."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare, sized_batch, warned_compare

from gradstats.analyses import plan_signal
from gradstats.estimators import Batch


def test_unresolved_signal_is_reported_with_the_plan_of_the_most_demanding_row():
    batch, scores = interleaved_batch([4] * 30, dim=200)
    result = quiet_compare(batch, ["rloo", "grpo"], scores)
    plan = max((plan_signal(result, name) for name in ("rloo", "grpo")), key=lambda plan: plan.n_prompts)
    said = f"at the upper end of its interval, {plan.n_prompts_low:,} like these 30"
    if np.isfinite(plan.n_prompts):
        size = f"takes an estimated {plan.n_prompts:,} prompts like these 30, and at least {plan.n_prompts_low:,}"
        said = f"Resolving that of {plan.asked['estimator']} {size}"
    assert said in result.notes[0]
    assert "not resolved for rloo and grpo" in result.notes[0]
    frame = result.to_frame()
    assert (frame["signal_sq_low"] <= 0).all()
    assert frame["noise_to_signal"].isna().all()
    assert frame[["cosine", "matched_ratio"]].isna().to_numpy().tolist() == [[False, False], [True, True]]


def test_a_cosine_may_be_known_where_the_signal_alone_is_not():
    """The product of the norms is resolved and one of them is not: the note does not say that there is no value."""
    rng = np.random.default_rng(4)
    rewards = (rng.random(240) < 0.5).astype(float)
    scores = rng.normal(size=(240, 8))
    scores[:, 0] += 0.9 * (rewards - 0.5)
    batch = Batch(rewards, np.full(240, 10), np.repeat(np.arange(60), 4))
    frame, text = warned_compare(batch, ["reinforce", "rloo"], scores)
    assert frame["signal_sq_low"].iloc[0] <= 0 < frame["cosine_low"].iloc[0] <= frame["cosine"].iloc[0]
    assert "not resolved for reinforce:" in text
    assert "shown only where they are resolved themselves" in text
    assert "without a value" not in text


@pytest.mark.parametrize(("signal", "said"), [(0.25, True), (1.5, False)])
def test_a_barely_resolved_signal_is_said_to_be_exaggerated(signal, said):
    """Between two and three standard errors from 0, and far from it."""
    batch, scores = interleaved_batch([4] * 60, signal=signal)
    result = quiet_compare(batch, ["reinforce"], scores, reference="reinforce")
    (row,) = result.rows
    assert row.resolved(0.95)
    assert (row.signal_sq.value < 3.0 * row.signal_sq.stderr) == said
    found = [note for note in result.notes if "barely resolved for reinforce" in note]
    assert len(found) == said
    assert all("too large on average, and noise-to-signal is too small" in note for note in found)


@pytest.mark.parametrize(
    ("rewards", "labels", "start", "end", "kept"),
    [
        (
            np.ones(40), ["rloo", "grpo", "reinforce"], "every reward equals 1 ",
            "so rloo and grpo give every completion weight 0 and their rows are NaN", [0.0, 0.0, 1.0],
        ),
        (
            np.arange(40) // 4 % 2, ["rloo"], "rewards are equal within every group (choose problems",
            "so rloo gives every completion weight 0 and its row is NaN", [0.0],
        ),
        # Two best answers in half of the groups: none is the single best.
        (
            (np.arange(40) < 20) * (np.arange(40) % 4 < 2), ["rloo", "pass_at_k"],
            "rewards differ within 5 of 10 groups, but nothing there meets the estimator's rule",
            "so pass_at_k gives every completion weight 0 and its row is NaN", [0.5, 0.0],
        ),
    ],
)  # fmt: skip
def test_rows_without_any_weight_are_nan_with_the_reason(rewards, labels, start, end, kept):
    batch, scores = interleaved_batch([4] * 10)
    by_row = np.empty(40)
    by_row[np.argsort(batch.group_index, kind="stable")] = rewards
    frame, text = warned_compare(batch.with_fields(rewards=by_row), labels, scores, reference="reinforce")
    (note,) = [line for line in text.splitlines() if "weight 0" in line]
    assert note.startswith(start)
    assert end in note
    assert frame["kept_share"].tolist() == kept
    assert frame["trace_cov"].isna().tolist() == [share == 0.0 for share in kept]
    assert "reinforce" not in labels or frame["ratio"].iloc[-1] == 1.0


@pytest.mark.parametrize(
    ("n_prompts", "label", "options", "match", "unknown"),
    [
        (2, "reinforce", {}, "2 prompts are too few", "trace_cov_low"),
        (10, "batch_mean", {"prompts_per_batch": 5, "n_resamples": 4}, "only 2 disjoint batches of 5", "signal_sq_low"),
    ],
)
def test_two_prompts_or_batches_have_no_interval(n_prompts, label, options, match, unknown):
    batch, scores = interleaved_batch([4] * n_prompts)
    frame, text = warned_compare(batch, [label], scores, reference="reinforce", **options)
    assert match in text
    assert np.isfinite(frame["trace_cov"].item())
    assert np.isnan(frame[unknown].item())
    assert " nan " not in " ".join(frame.attrs["notes"])


def test_prompts_that_carry_the_noise_are_named_in_the_frame_and_a_note():
    batch, scores = interleaved_batch([4] * 80)
    scores[batch.groups == "p007"] *= 40.0
    result = quiet_compare(batch.with_fields(sq_norms=(scores**2).sum(axis=1)), ["reinforce", "grpo"], scores)
    frame, text = result.to_frame(), " ".join(result.notes)
    assert set(frame["most_influential_prompt"]) == {"p007"}
    assert (frame["n_effective_prompts"] < 2).all()
    for said in (
        "(prompt p007 counts most), and about 50 are needed",
        "intervals of reinforce and grpo may be too narrow",
        "80 prompts count as 1 effective prompts",
        "tr Cov of reinforce and grpo is not bounded from above",
        "80 prompts count as 1.1, and 15 are needed, which about 1,100 prompts would be worth",
        "ratios have one end",
    ):
        assert said in text
    assert np.isinf(frame["trace_cov_high"]).all()
    assert (np.isinf(frame["ratio_high"]) | (frame["ratio_low"] == 0.0) | (frame["ratio_high"] == 1.0)).all()
    alone = quiet_compare(batch, ["reinforce"], scores, reference="reinforce").notes
    assert "intervals of reinforce may be too narrow" in " ".join(alone)


def test_even_gradients_and_single_groups_get_no_note_of_their_prompts():
    batch, _ = interleaved_batch([4] * 200)
    scores = np.random.default_rng(0).choice([-1.0, 1.0], size=(800, 50))
    result = quiet_compare(batch.with_fields(rewards=np.ones(800)), ["reinforce"], scores, reference="reinforce")
    assert not any("effective prompts" in note or "bounded from above" in note for note in result.notes)
    batch, scores = interleaved_batch([1] * 10)
    _, text = warned_compare(batch.with_fields(rewards=np.zeros(10)), ["reinforce"], scores, reference="reinforce")
    assert "every reward equals 0 (choose problems that are solved sometimes, not always), so reinforce gives" in text


def test_notes_name_their_rows_and_size_and_are_not_repeated():
    batch, scores = interleaved_batch([4] * 10, dim=200)
    labels = ["rloo", "grpo", "group_mean", "token_mean"]
    of_four, of_three = (quiet_compare(batch, chosen, scores).notes[0] for chosen in (labels, labels[:3]))
    assert "not resolved for all 4 rows" in of_four
    assert "not resolved for rloo, grpo and group_mean" in of_three
    batch, scores = sized_batch(size=6)
    result = quiet_compare(batch, ["rloo", "group_mean"], scores, group_size=(4, 3), scores_are_sketches=True)
    assert any(note.startswith("group_size=4: 40 completions did not fill a group of 4") for note in result.notes)
    assert sum("estimated from sketches of dimension 6 " in note for note in result.notes) == 1
    assert result.n_leftover == 40


@pytest.mark.parametrize(
    ("sizes", "labels", "expected"),
    [
        ([1, 4, 4, 4, 4], ["rloo(singleton=nan)"], "some weights of rloo(singleton=nan) are NaN, so its row is NaN: "),
        (
            [1, 4, 4, 4, 4], ["rloo(singleton=nan)", "reinforce", "token_mean(loo=True, singleton=nan)"],
            "rloo(singleton=nan) and token_mean(loo=True, singleton=nan) are NaN, so their rows are NaN",
        ),
        ([4] * 24, ["rloo", "constant"], "constant is a batch-level estimator, measured on batches of 6 prompts"),
        ([4] * 24, ["constant", "batch_mean"], "constant and batch_mean are batch-level estimators, measured on"),
        ([5, 4, 4, 4, 4], ["rloo"], "1 completion did not fill a group of 4 and was left out"),
    ],
)  # fmt: skip
def test_rows_of_a_kind_are_named(sizes, labels, expected):
    batch, scores = interleaved_batch(sizes)
    options = {"n_resamples": 2, "group_size": 4 if sizes[0] == 5 else None}
    assert expected in " ".join(quiet_compare(batch, labels, scores, **options).notes)


def negative_rewards(rewards):
    """Three prompts of the given rewards and ten of 0/1 rewards, four completions each."""
    batch, scores = interleaved_batch([4] * 13)
    changed = np.where(np.arange(52) % 4 == 0, 1.0, 0.0)
    changed[np.argsort(batch.group_index, kind="stable")[:12]] = rewards
    return batch.with_fields(rewards=changed), scores


def test_division_by_group_means_of_both_signs_is_named():
    """0.4/4 is the smallest mean: rewards of 2 are 19 times as far from it as it is from 0."""
    batch, scores = negative_rewards([2.0, -1.0, -0.5, -0.1, -1.0, -1.0, -2.0, 0.0, -1.0, 1.0, 1.0, 1.0])
    scaled = "recipe:custom(advantage=rloo, scale=group_mean)"
    _, text = warned_compare(batch, ["rloo", "max_rl", scaled, "grpo"], scores)
    (note,) = [line for line in text.splitlines() if "divided by the mean reward" in line]
    assert note.startswith(
        f"the gradient of max_rl and {scaled} is divided by the mean reward of a group, which is negative in 1 of "
        "13 groups and reverses the sign of their gradient, which may come near 0 in 2 with rewards"
    )
    assert "(advantages reach 19; with one sign 3 at most): of continuous rewards neither E ĝ nor tr Cov exists" in note
    assert note.endswith("give rewards of at least 0 (the source defines it for 0 and 1)")


@pytest.mark.filterwarnings("ignore:advantages of 12 completions are NaN:RuntimeWarning")
def test_a_group_mean_of_zero_has_a_reason_of_its_own():
    batch, scores = negative_rewards([1.0, -1.0] * 6)
    frame, text = warned_compare(batch, ["rloo", "max_rl"], scores)
    assert "come near 0 in 3 with rewards of both signs (advantages reach 0; with one sign 3 at most)" in text
    assert "which is 0 in 3 of these, so that the row is NaN: give rewards" in text
    assert "singleton" not in text
    assert frame["trace_cov"].isna().tolist() == [False, True]


def test_rewards_that_a_recipe_makes_negative_are_seen():
    batch, scores = interleaved_batch([4] * 13)
    label = "recipe:custom(advantage=group_mean, scale=group_mean, reward='soft_overlong(max=40, cache=30)')"
    assert batch.rewards.min() == 0.0
    _, text = warned_compare(batch, ["max_rl", label], scores)
    assert "the gradient of recipe:custom(advantage=group_mean, scale=group_mean" in text
    assert "max_rl is divided" not in text
    batch, scores = negative_rewards([0.0, 3.0, 0.1, 0.0] * 3)  # of at least 0
    assert "divided by" not in warned_compare(batch, ["rloo", "max_rl"], scores)[1]
