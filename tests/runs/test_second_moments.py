"""Second moments that are estimated from rollouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts
from gradient_models import any_model

import gradstats as gs
from gradstats.gradients.metric import prompt_digests
from gradstats.reference.autograd_loop import sequence_gradients
from gradstats.runs.second_moments import set_aside

OPTIONS = {"prompts_per_batch": 2, "progress": False}


def test_the_estimate_is_the_mean_square_of_batch_gradients():
    """Five prompts of two completions: two batches of two prompts, under leave-one-out weights by hand."""
    model, rollouts = any_model("gpt2", True), ragged_rollouts(10)
    metric = gs.estimate_second_moments(model, rollouts, "rloo", **OPTIONS)
    scores, rewards = sequence_gradients(model, rollouts), rollouts.rewards
    for name, values in metric.second_moments.items():
        batches = []
        for first in (0, 4):
            rows = range(first, first + 4)
            others = {row: row + 1 if row % 2 == 0 else row - 1 for row in rows}
            batches.append(sum((rewards[row] - rewards[others[row]]) / 2 * scores[row][name] for row in rows) / 2)
        expected = torch.stack(batches).square().mean(dim=0)
        np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-20, err_msg=name)
    assert metric.prompts == set(prompt_digests(rollouts.select(range(8))))
    assert metric.source == "the mean square of 2 batch gradients of 2 prompts under rloo"
    with pytest.raises(ValueError, match="estimated from 4 of the prompts that are to be measured"):
        gs.measure(model, rollouts, metric=metric, progress=False)
    measured = gs.measure(model, rollouts.select([8, 9]), metric=metric, sketch_dim=None, progress=False)
    assert measured.metadata["metric"]["moments"] == metric.digest()


def test_estimators_of_tokens_and_of_batches():
    model, rollouts = any_model("gpt2"), ragged_rollouts(8, masked=True)
    plain = gs.estimate_second_moments(model, rollouts, "group_mean", **OPTIONS)
    for label in ("otb", "recipe:dr_grpo", "batch_mean(loo=True)"):
        other = gs.estimate_second_moments(model, rollouts, label, metric="adam(eps=1e-4)", params="h\\.", **OPTIONS)
        assert other.eps == 1e-4
        assert all("h." in name for name in other.second_moments)
        assert other.digest() != plain.digest()


def test_what_cannot_be_estimated():
    model, rollouts = any_model("qwen2"), ragged_rollouts(4)
    with pytest.raises(ValueError, match="prompts_per_batch is 3, and there are 2 prompts to estimate second moments"):
        gs.estimate_second_moments(model, rollouts, prompts_per_batch=3, progress=False)
    with pytest.raises(ValueError, match="sq_norms"):
        gs.estimate_second_moments(model, rollouts, "norm_weighted", **OPTIONS)


@pytest.mark.parametrize(("share", "n_set_aside"), [(0.25, 4), (0.5, 8), (0.3, 4), (0.99, 15)])
def test_prompts_that_are_set_aside_are_spread_over_all(share, n_set_aside):
    rollouts = ragged_rollouts(32)
    aside = set_aside(rollouts, share)
    names = rollouts.prompt_id
    assert len(set(names[aside])) == n_set_aside
    assert not set(names[aside]) & set(names[~aside])
    places = np.flatnonzero(aside[::2])
    assert np.ptp(np.diff(places)) <= 1
