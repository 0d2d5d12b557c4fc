"""Which groups a filter keeps."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_batches import batches
from hypothesis import given, settings
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.estimators import Batch, Recipe
from gradstats.reference import naive_estimators as naive

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(batch=batches())
def test_dynamic_sampling(batch: Batch):
    recipe = Recipe("reinforce", filter="dynamic_sampling")
    kept = recipe.kept_groups(batch)
    assert_allclose(kept, naive.differing_groups(batch))
    weights = recipe.weights(batch)
    assert_allclose(weights, est.reinforce().weights(batch) * kept[batch.group_index])


@FEW
@given(batch=batches())
def test_mask_truncated(batch: Batch):
    cut = np.arange(batch.rewards.size) % 3 == 0
    batch = batch.with_fields(truncated=cut)
    weights = Recipe("rloo", filter="mask_truncated").weights(batch)
    assert_allclose(weights, np.where(cut, 0.0, est.rloo().weights(batch)))
    both = Recipe("reinforce", filter="mask_truncated(dynamic_sampling=True)").weights(batch)
    kept = naive.differing_groups(batch)[batch.group_index] & ~cut
    assert_allclose(both, est.reinforce().weights(batch) * kept)
    rescaled = Recipe("rloo", aggregation="token_mean", filter="mask_truncated(rescale=True)").weights(batch)
    for i in np.flatnonzero(~cut):
        left = sum(int(batch.lengths[j]) for j in np.flatnonzero(~cut) if batch.groups[j] == batch.groups[i])
        assert_allclose(rescaled[i], est.rloo().advantages(batch)[i] / left)
    assert not rescaled[cut].any()


def test_truncation_that_is_not_recorded():
    with pytest.raises(ValueError, match="needs truncated.*finish_reason of the rollouts.*or pass truncated="):
        Recipe("rloo", filter="mask_truncated").weights(Batch([1, 0], [1, 1], ["a", "a"]))
