"""The shift of Asymmetric REINFORCE that a baseline is equivalent to."""

import numpy as np
import pytest
from comparison_batches import correlated_batch
from scipy import stats

from gradstats import estimators as est
from gradstats.analyses import implied_shift


@pytest.mark.parametrize("delta", [-0.1, 0.3])
def test_implied_shift_of_asymmetric_is_its_delta(delta):
    result = implied_shift(correlated_batch()[0], est.asymmetric(delta=delta))
    assert result.delta.value == pytest.approx(delta)
    np.testing.assert_allclose(result.confidence_interval(), [delta, delta])
    shown = f"{delta}".replace("-", "−")
    assert f" lies {shown} from the group mean, like asymmetric with this δ (90% interval" in result.sentence(0.9)


@pytest.mark.parametrize("label", ["rloo", "group_mean", "grpo", "max_rl", "recipe:grpo", "recipe:dapo(loo=True)"])
def test_a_baseline_that_is_the_group_mean_has_exactly_no_shift_by_construction(label):
    result = implied_shift(correlated_batch()[0], label)
    assert result.by_construction
    assert (result.delta.value, *result.confidence_interval()) == (0.0, 0.0, 0.0)
    assert result.sentence().startswith(f"The equivalent δ of {label} is 0 by construction: averaged over")


def test_implied_shift_of_a_length_weighted_baseline():
    batch, _ = correlated_batch()
    result = implied_shift(batch, "length_weighted(alpha=0.8)")
    weights = batch.lengths**1.6
    shifts = []
    for prompt in range(200):
        rows = batch.group_index == prompt
        shifts.append(np.average(batch.rewards[rows], weights=weights[rows]) - batch.rewards[rows].mean())
    assert result.delta.value == pytest.approx(np.mean(shifts))
    expected = stats.t.interval(0.95, 199, loc=np.mean(shifts), scale=stats.sem(shifts))
    np.testing.assert_allclose(result.confidence_interval(), expected)
    assert result.delta.value < 0
    assert result.to_frame()["delta"].item() == result.delta.value


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("pass_at_k", r"pass_at_k has no single baseline in units of the reward, .*\(baseline: best of the others"),
        ("reinforce_pp", r"reinforce_pp has no single baseline .*\(.*divided by: batch token std"),
        ("discounted(gamma=0.9)", r"has no single baseline .*\(its advantages differ from token to"),
        ("remax", "remax needs greedy_rewards"),
    ],
)
def test_implied_shift_refusals(label, message):
    with pytest.raises(ValueError, match=message):
        implied_shift(correlated_batch()[0], label)
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        implied_shift(correlated_batch(n_prompts=2)[0], "rloo")


def test_a_recipe_has_the_shift_of_what_it_subtracts():
    batch, _ = correlated_batch()
    assert not implied_shift(batch, "recipe:opo").by_construction
    expected = implied_shift(batch, "token_mean").delta.value
    for label in ("recipe:opo", "recipe:grpo(advantage=token_mean)"):  # the second divides by the spread afterwards
        assert implied_shift(batch, label).delta.value == pytest.approx(expected)
    punished = "recipe:opo(reward='soft_overlong(max=40, cache=39)')"
    terms = np.clip((1 - batch.lengths) / 39, -1.0, 0.0)
    lowered = implied_shift(batch.with_fields(rewards=batch.rewards + terms), "token_mean")
    assert implied_shift(batch, punished).delta.value == pytest.approx(lowered.delta.value)
    assert lowered.delta.value != pytest.approx(expected)


def test_a_token_level_estimator_with_one_baseline_per_completion_has_a_shift():
    batch, _ = correlated_batch()
    result = implied_shift(batch.with_fields(greedy_rewards=np.full(len(batch.rewards), 0.25)), "remax")
    by_group = np.bincount(batch.group_index, weights=batch.rewards) / batch.group_sizes
    assert result.delta.value == pytest.approx(0.25 - by_group.mean())
    result = implied_shift(batch.with_fields(rewards=np.ones(len(batch.rewards))), "rloo")  # without any advantage
    assert (result.delta.value, result.by_construction) == (0.0, False)


def test_the_mean_over_the_batch_is_that_of_the_groups_where_these_have_one_size():
    rng = np.random.default_rng(0)
    batch = est.Batch(rng.integers(0, 2, 40), rng.integers(1, 50, 40), np.repeat(np.arange(10), 4))
    assert implied_shift(batch, "batch_mean").by_construction
    uneven = batch.select(np.arange(40) != 3)
    assert implied_shift(uneven, "batch_mean").delta.value != 0.0
