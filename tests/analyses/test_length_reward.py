"""The correlation of length and reward within prompts."""

import numpy as np
import pytest
from comparison_batches import correlated_batch
from fixture_frames import completions

from gradstats.analyses import length_reward_correlation, plot_length_reward


def test_length_reward_correlation_is_within_prompts():
    batch, _ = correlated_batch()
    result = length_reward_correlation(batch)
    x, y = batch.lengths.astype(float), batch.rewards.copy()
    kept = np.zeros(len(x), dtype=bool)
    for prompt in range(200):
        rows = batch.group_index == prompt
        kept[rows] = len(set(y[rows])) > 1
        x[rows] -= x[rows].mean()
        y[rows] -= y[rows].mean()
    assert result.correlation == pytest.approx(np.corrcoef(x[kept], y[kept])[0, 1], rel=1e-12)
    assert result.n == kept.sum() < len(x)
    low, high = result.confidence_interval()
    assert low < result.correlation < high < 0.05
    assert result.to_frame()["correlation_low"].item() == low
    moved = length_reward_correlation(lengths=3 * batch.lengths + 7, rewards=-batch.rewards, groups=batch.groups)
    assert moved.correlation == pytest.approx(-result.correlation)


def test_prompts_that_vary_in_one_of_the_two_do_not_enter():
    """Four prompts with the correlation −50/√7000 by hand; one never solved, one always, one of a single length."""
    lengths, rewards = [10, 20, 30, 40] * 4, [1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0]
    groups = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    # Sums of squared deviations: 500 a prompt for lengths; 1, 1, 3/4, 3/4 for rewards; products −20, −10, −15, −5.
    alone = length_reward_correlation(lengths=lengths, rewards=rewards, groups=groups)
    assert alone.correlation == pytest.approx(-50 / np.sqrt(2000 * 3.5), rel=1e-12)
    lengths, rewards = [*lengths, 100, 8000, 500, 7, 9, 2000, 5, 5, 5], [*rewards, 0.1, 0.1, 0.1, 1, 1, 1, 0, 1, 1]
    others = length_reward_correlation(lengths=lengths, rewards=rewards, groups=groups + [4] * 3 + [5] * 3 + [6] * 3)
    assert (others.correlation, others.stderr) == (alone.correlation, alone.stderr)
    assert (others.n_prompts, others.n) == (4, 16)


def test_without_variation_it_is_nan_with_a_reason():
    lengths, groups = [1, 2, 3, 4], [0, 0, 1, 1]
    with pytest.warns(UserWarning, match="differ in both length and reward for only 0 of the prompts"):
        assert np.isnan(length_reward_correlation(lengths=lengths, rewards=[1, 1, 0, 0], groups=groups).correlation)
    with pytest.warns(UserWarning, match="sample more prompts"):
        result = length_reward_correlation(lengths=lengths, rewards=[1, 0, 0, 0], groups=groups)
    assert result.sentence() == (
        "The correlation of length and reward within prompts cannot be estimated: only 1 prompt has completions that "
        "differ in both."
    )
    with pytest.raises(TypeError, match="give a measurement, or all of"):
        length_reward_correlation(lengths=[1])
    with pytest.raises(ValueError, match="got 2, 1 and 2"):
        length_reward_correlation(lengths=[1, 2], rewards=[1], groups=[0, 0])


def test_the_sentence_states_the_direction_only_where_it_is_resolved():
    batch, _ = correlated_batch()
    assert length_reward_correlation(batch).sentence().startswith("Longer answers to a prompt are less often right")
    unrelated = batch.with_fields(rewards=np.random.default_rng(0).permutation(batch.rewards))
    assert length_reward_correlation(unrelated).sentence().startswith("Whether longer answers")


def test_the_figure_is_relative_to_prompts_and_states_the_correlation():
    frame = completions("ordinary")
    found = length_reward_correlation(lengths=frame["length"], rewards=frame["reward"], groups=frame["prompt_id"])
    ax = plot_length_reward(frame, correlation=found)
    means = frame.groupby("prompt_id")[["length", "reward"]].transform("mean")
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_offsets()), frame[["length", "reward"]] - means)
    numbers = [f"{number:.2f}".replace("-", "−") for number in (found.correlation, *found.confidence_interval())]
    assert ax.get_title(loc="left") == "correlation {} [{}, {}]".format(*numbers)
