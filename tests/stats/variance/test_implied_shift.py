"""The shift of Asymmetric REINFORCE that a baseline is equivalent to."""

import numpy as np
import pytest
from comparison_batches import correlated_batch
from scipy import stats

from gradstats import estimators as est
from gradstats.stats import (
    implied_shift,
)


def test_implied_shift_of_asymmetric_is_its_delta():
    batch, _ = correlated_batch()
    for delta in (-0.1, 0.3):
        result = implied_shift(batch, est.asymmetric(delta=delta))
        assert result.delta.value == pytest.approx(delta)
        np.testing.assert_allclose(result.confidence_interval(), [delta, delta])
    assert implied_shift(batch, "rloo").delta.value == pytest.approx(0.0, abs=1e-12)


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


def test_implied_shift_refusals():
    batch, _ = correlated_batch(n_prompts=2)
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        implied_shift(batch, "rloo")
    with pytest.raises(ValueError, match="does not subtract one baseline"):
        implied_shift(correlated_batch()[0], "grpo")


def test_the_sentence_gives_the_shift_with_its_interval():
    sentence = implied_shift(correlated_batch()[0], est.asymmetric(delta=-0.1)).sentence(0.9)
    assert sentence.startswith("The baseline of asymmetric lies -0.1 [-0.1, -0.1] from the group mean")
    assert "90% interval, 200 prompts" in sentence


def test_a_recipe_has_the_shift_of_its_advantage():
    batch, _ = correlated_batch()
    assert implied_shift(batch, "recipe:dr_grpo").delta.value == pytest.approx(0.0, abs=1e-12)
    expected = implied_shift(batch, "token_mean").delta.value
    assert implied_shift(batch, "recipe:opo").delta.value == pytest.approx(expected)
    with pytest.raises(ValueError, match="recipe:grpo does not subtract one baseline"):
        implied_shift(batch, "recipe:grpo")


def test_a_shift_that_is_zero_by_construction_is_refused():
    rng = np.random.default_rng(0)
    batch = est.Batch(rng.integers(0, 2, 40), rng.integers(1, 50, 40), np.repeat(np.arange(10), 4))
    with pytest.raises(ValueError, match="the shift of batch_mean is 0 by construction here"):
        implied_shift(batch, "batch_mean")
    uneven = batch.select(np.arange(40) != 3)
    assert implied_shift(uneven, "batch_mean").delta.value != 0.0
