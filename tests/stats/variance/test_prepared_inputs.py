"""Inputs of a comparison are settled before anything is computed from them."""

from __future__ import annotations

import numpy as np

from gradstats.estimators import Batch, recipes
from gradstats.estimators.ratios import AlongCompletions
from gradstats.stats.variance.comparison import prepared_inputs


def batch_of(off_policy):
    """Return completions of unequal length, with the given log-ratio at every token, and scores."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 6, 12)
    logprobs = rng.normal(-1.0, 0.1, (12, lengths.max()))
    return Batch(
        rewards=rng.integers(0, 2, 12).astype(float),
        lengths=lengths,
        groups=np.repeat(np.arange(3), 4),
        logprobs=logprobs,
        old_logprobs=logprobs - off_policy,
    ), rng.normal(size=(12, 5))


def test_ratios_that_differ_from_one_by_rounding_need_no_scores_of_tokens():
    batch, scores = batch_of(off_policy=1e-9)
    inputs, (weighting,), judged = prepared_inputs(batch, [recipes.get("grpo")], scores, False, "auto")
    assert judged.kind == "on_policy"
    assert inputs.scores.shape == (12, 5)
    assert isinstance(weighting, AlongCompletions)


def test_a_recipe_whose_ratios_vary_along_completions_keeps_its_weights_of_tokens():
    batch, scores = batch_of(off_policy=0.0)
    batch = batch.with_fields(old_logprobs=batch.logprobs + np.linspace(-0.5, 0.5, batch.logprobs.shape[1]))
    _, (weighting,), judged = prepared_inputs(batch, [recipes.get("grpo")], scores, False, "auto")
    assert judged.kind == "importance"
    assert not isinstance(weighting, AlongCompletions)
