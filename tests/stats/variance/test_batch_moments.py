"""Batch-level estimators against the closed form of group-level ones."""

import dataclasses

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare

from gradstats import estimators as est
from gradstats.stats import compare


def batch_level(name):
    """A group-level estimator that claims to be batch-level."""
    local = est.get(name)
    definition = dataclasses.replace(local.definition, across_groups=lambda parameters: True)
    return est.Estimator(definition, local.parameters)


def test_batches_of_one_prompt_give_the_closed_form():
    batch, scores = interleaved_batch([4, 3, 5] * 4, signal=1.0)
    local = quiet_compare(batch, ["token_mean"], scores, reference="reinforce").to_frame()
    dealt = quiet_compare(
        batch, [batch_level("token_mean")], scores, reference="reinforce", prompts_per_batch=1, n_resamples=3
    )
    number = [
        c for c in local.columns if c not in ("estimator", "group_size", "unit") and not c.startswith("bias_share")
    ]
    np.testing.assert_allclose(dealt.to_frame()[number].astype(float), local[number].astype(float), rtol=1e-8)
    assert "batches of 1 prompts, dealt 3 times" in " ".join(dealt.notes)


@pytest.mark.parametrize("group_size", [None, 2])
def test_batches_of_several_prompts_agree_with_the_closed_form(group_size):
    batch, scores = interleaved_batch([4] * 60, signal=1.0)
    keywords = {"group_size": group_size, "reference": "reinforce"}
    local = compare(batch, ["token_mean"], scores, **keywords).to_frame().iloc[0]
    dealt = compare(batch, [batch_level("token_mean")], scores, prompts_per_batch=6, n_resamples=300, **keywords)
    dealt = dealt.to_frame().iloc[0]
    for quantity in ("trace_cov", "signal_sq", "ratio"):
        assert dealt[quantity] == pytest.approx(local[quantity], rel=0.05), quantity
        width = local[f"{quantity}_high"] - local[f"{quantity}_low"]
        assert dealt[f"{quantity}_high"] - dealt[f"{quantity}_low"] == pytest.approx(width, rel=0.25), quantity
    assert dealt["kept_share"] == pytest.approx(local["kept_share"], abs=0.01)


def test_a_batch_level_estimator_sees_whole_batches():
    batch, scores = interleaved_batch([4] * 24)
    sizes = []
    local = est.reinforce()

    def spy(inner):
        sizes.append((inner.n_groups, len(inner.rewards)))
        return inner.rewards - inner.rewards.mean()

    definition = dataclasses.replace(local.definition, function=spy, across_groups=lambda parameters: True)
    quiet_compare(batch, [est.Estimator(definition, {})], scores, prompts_per_batch=8, n_resamples=2)
    assert sizes == [(8, 32)] * 6
